package evict

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

type altered struct {
	*node
	get   func(string)
	evict func(string) error
}

func (a altered) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if a.get != nil {
		a.get(name)
	}
	return a.node.Pod(ctx, namespace, name)
}

func (a altered) Evict(ctx context.Context, pod *corev1.Pod) error {
	if a.evict != nil {
		if err := a.evict(pod.Name); err != nil {
			return err
		}
	}
	return a.node.Evict(ctx, pod)
}

// Pods whose evictions are denied do not keep another from leaving.
func TestDeniedEvictionsStarveNobody(t *testing.T) {
	t.Parallel()
	n := newNode(5 * time.Minute)
	n.API = altered{node: n, evict: func(name string) error {
		if name != "web-1" {
			return errors.New("admission webhook denied the request")
		}
		return nil
	}}
	n.create("vm-1", "vm1", "VirtualMachineInstance")
	n.create("vm-2", "vm2", "VirtualMachineInstance")
	n.refused(time.Minute)
	n.create("web-1", "web", "ReplicaSet")
	n.refused(time.Hour)
	if len(n.done) != 1 {
		t.Errorf("evicted %q in an hour, want web-1; %d reads", n.done, n.reads)
	}
}

// A pod of many containers that are refused for another reason does not hide that others wait.
func TestManyRejectionsHideNoWait(t *testing.T) {
	t.Parallel()
	n := newNode(5 * time.Minute)
	n.create("web-1", "web", "ReplicaSet")
	keep := func(r ledger.Rejection) {
		r.At, r.Last, r.Count, r.Namespace, r.Refused = n.now, n.now, 1, "shop", true
		rejections := append([]ledger.Rejection{r}, n.view.Rejections...)
		n.view.Rejections = rejections[:min(len(rejections), ledger.RejectionsKept)]
	}
	for ; n.now.Sub(start) < time.Hour && len(n.done) == 0; n.now = n.now.Add(2 * time.Second) {
		switch int(n.now.Sub(start)/time.Second) % 12 {
		case 0:
			keep(ledger.Rejection{Pod: "web-1", UID: "uid-web-1", Container: "app", Reason: wanting[0], Text: "no room"})
		case 6:
			for i := range ledger.RejectionsKept {
				keep(ledger.Rejection{Pod: "bad", UID: "uid-bad", Container: fmt.Sprint("c", i), Reason: ledger.BadAnnotation.String()})
			}
		}
		n.look(context.Background(), n.now)
	}
	if len(n.done) != 1 {
		t.Errorf("evicted %q in an hour, want web-1", n.done)
	}
}

// A pod that is placed while the API server answers stays, and so does one whose node begins a dry run then.
func TestPlacedWhileTheServerAnswers(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*ledger.View){
		"placed": func(v *ledger.View) {
			v.Pods = []*ledger.PodView{{UID: "uid-web-1", Containers: []ledger.ContainerView{{Name: "app", State: ledger.Running}}}}
		},
		"rolled back": func(v *ledger.View) { v.Config.Config.RolledBack = true },
	} {
		n := newNode(5 * time.Minute)
		n.create("web-1", "web", "ReplicaSet")
		n.API = altered{node: n, get: func(string) {
			view := &ledger.View{Config: n.view.Config, Rejections: n.view.Rejections}
			change(view)
			n.view = view
		}}
		if n.refused(6 * time.Minute); len(n.done) != 0 {
			t.Errorf("%s: evicted %q, want nothing", name, n.done)
		}
	}
}
