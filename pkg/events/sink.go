package events

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
)

// requestTimeout bounds one request to the API server.
const requestTimeout = 10 * time.Second

// api writes events to the API server. client-go's own sink would draw its clientset into the binary.
type api struct{ client rest.Interface }

// NewSink returns a sink that needs the rights to create and patch events.
func NewSink(config *rest.Config) (record.EventSink, error) {
	client, err := apiserver.NewClient(config, corev1.SchemeGroupVersion, &corev1.Event{})
	if err != nil {
		return nil, fmt.Errorf("write events to the API server: %w", err)
	}
	return api{client}, nil
}

// Create writes a new event.
func (a api) Create(event *corev1.Event) (*corev1.Event, error) {
	return result(a.client.Post().Namespace(event.Namespace).Body(event))
}

// Update replaces an event.
func (a api) Update(event *corev1.Event) (*corev1.Event, error) {
	return result(a.client.Put().Namespace(event.Namespace).Name(event.Name).Body(event))
}

// Patch counts an event once more.
func (a api) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	return result(a.client.Patch(types.StrategicMergePatchType).Namespace(event.Namespace).Name(event.Name).Body(patch))
}

// result leaves a refusal as it is: by its type the recorder knows that trying again is of no use. A server that is only
// busy or starting is another matter, and a wrapped error is none of those types.
func result(request *rest.Request) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	written := &corev1.Event{}
	err := request.Resource("events").Do(ctx).Into(written)
	var status apierrors.APIStatus
	if errors.As(err, &status) && (status.Status().Code >= http.StatusInternalServerError || status.Status().Code == http.StatusTooManyRequests) {
		err = fmt.Errorf("not now: %w", err)
	}
	return written, err
}
