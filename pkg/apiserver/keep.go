package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Kept is an object that follows from a view of this node.
type Kept[V any] struct {
	// Kind is what the log calls it.
	Kind string
	View func() V
	// Due reports whether there is something to write or to read. It waits for nobody.
	Due func(V) bool
	// Write makes the object what it should be.
	Write func(context.Context, V) error
	// Period is the mean time between two writes while something changes all the time. A change after a quiet time is written at once.
	Period time.Duration
	// Look is how often the View is looked at for a change; 0 is 200 ms, so that pods which start together share a write.
	Look time.Duration
	Log  logrus.FieldLogger
}

const (
	lookEvery = 200 * time.Millisecond
	// burst is how many writes a quiet time allows at once. Each period adds one again.
	burst = 5
)

// Run keeps the object until ctx ends. An API server that does not answer is asked again after a period, stretched by up to a fifth at
// random, so that a cluster's nodes do not ask in step.
func (k Kept[V]) Run(ctx context.Context) {
	limit := rate.NewLimiter(rate.Every(k.Period), burst)
	failing := false
	for {
		pause := cmp.Or(k.Look, lookEvery)
		if view := k.View(); k.Due(view) && limit.Allow() {
			switch err := k.Write(ctx, view); {
			case ctx.Err() != nil:
				return
			case err != nil:
				pause = k.Period + rand.N(k.Period/5+1)
				if !failing {
					k.Log.WithError(err).Warnf("the %s of this node is not up to date", k.Kind)
				}
				failing = true
			case failing:
				k.Log.Infof("the %s of this node is up to date again", k.Kind)
				failing = false
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Owners are the Node, so that an object is deleted together with it. The client may be of any API group.
func Owners(ctx context.Context, client rest.Interface, name string) ([]metav1.OwnerReference, error) {
	text, err := client.Get().AbsPath("/api/v1/nodes", name).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var node metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &node); err != nil {
		return nil, err
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}}, nil
}
