package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Object is an object of the API.
type Object interface {
	runtime.Object
	metav1.Object
}

// Followed are objects of the API server. Of each only an S is kept, so that no whole object outlives its event.
type Followed[O Object, S any] struct {
	Client   rest.Interface
	Resource string
	// Field must have the value Value in the objects.
	Field, Value string
	// Object and List are empty ones.
	Object O
	List   runtime.Object
	// Small returns what is kept of an object.
	Small func(O) S
	// Put receives new and changed objects, Drop those that are gone, and Replace all that there are.
	Put, Drop func(S)
	Replace   func([]S)
	// Attempted receives how each attempt to list or watch has ended.
	Attempted func(error)
	Backoff   *wait.Backoff // nil for client-go's
}

// pageSize is the size of a page of a list, if the server cannot stream it.
const pageSize = 100

// Run lists and watches the objects until ctx ends.
func (f Followed[O, S]) Run(ctx context.Context) {
	silent := klog.New(nil) // Attempted has the errors
	reflector := cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}, f.Object, store[O, S]{f},
		cache.ReflectorOptions{Name: f.Resource, Logger: &silent, Backoff: f.Backoff})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(klog.NewContext(ctx, silent))
}

func (f Followed[O, S]) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list := f.List.DeepCopyObject()
	err := f.request(options).Do(ctx).Into(list)
	f.attempted(ctx, err)
	return list, err
}

func (f Followed[O, S]) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	w, err := f.request(options).Watch(ctx)
	if options.SendInitialEvents == nil || !apierrors.IsInvalid(err) { // a server that cannot stream the list is asked for it
		f.attempted(ctx, err)
	}
	return w, err
}

func (f Followed[O, S]) request(options metav1.ListOptions) *rest.Request {
	options.FieldSelector = fields.OneTermEqualSelector(f.Field, f.Value).String()
	return f.Client.Get().Resource(f.Resource).VersionedParams(&options, metav1.ParameterCodec)
}

func (f Followed[O, S]) attempted(ctx context.Context, err error) {
	if ctx.Err() == nil {
		f.Attempted(err)
	}
}

// store receives objects from client-go's reflector.
type store[O Object, S any] struct{ Followed[O, S] }

// small is what is kept of an object while a streamed list is collected: the reflector needs its names.
type small[S any] struct {
	metav1.ObjectMeta
	kept S
}

func (s store[O, S]) small(object any) (*small[S], error) {
	switch o := object.(type) {
	case O:
		return &small[S]{metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}, s.Small(o)}, nil
	case *small[S]:
		return o, nil
	}
	return nil, fmt.Errorf("follow %s in the API server: got a %T, want a %T", s.Resource, object, s.Object)
}

// Transformer makes objects small while the reflector collects a streamed list.
func (s store[O, S]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		if _, whole := object.(O); !whole {
			return object, nil
		}
		return s.small(object)
	}
}

// Add implements cache.ReflectorStore.
func (s store[O, S]) Add(object any) error { return s.one(object, s.Put) }

// Update implements cache.ReflectorStore.
func (s store[O, S]) Update(object any) error { return s.one(object, s.Put) }

// Delete implements cache.ReflectorStore.
func (s store[O, S]) Delete(object any) error { return s.one(object, s.Drop) }

func (s store[O, S]) one(object any, do func(S)) error {
	small, err := s.small(object)
	if err == nil {
		do(small.kept)
	}
	return err
}

// Replace implements cache.ReflectorStore.
func (s store[O, S]) Replace(objects []any, _ string) error {
	all := make([]S, len(objects))
	for i, object := range objects {
		small, err := s.small(object)
		if err != nil {
			return err
		}
		all[i], objects[i] = small.kept, nil // a whole object is large
	}
	s.Followed.Replace(all)
	return nil
}

// Resync implements cache.ReflectorStore.
func (store[O, S]) Resync() error { return nil }
