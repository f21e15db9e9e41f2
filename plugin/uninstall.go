package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// standsTimeout bounds the question after the DaemonSet: the rollback comes behind it.
const standsTimeout = 5 * time.Second

// endsForGood reports whether what was written goes with the daemon that ends: if the configuration says so and, where the
// daemon knows its DaemonSet, that is deleted. An update of it, or the pod's move to another node, leaves the values.
func (d *daemon) endsForGood() bool {
	switch {
	case d.agent.View().Config.Config.OnTermination != config.RollbackValues:
		return false
	case d.options.daemonSet == "":
		return true
	}
	stands, err := d.daemonSetStands()
	if err != nil {
		d.log.WithError(err).Warn(`the written values are kept: "nri-memory-manager rollback" takes them back`)
		return false
	}
	return !stands
}

func (d *daemon) daemonSetStands() (bool, error) {
	api, err := apiserver.Config(d.options.kubeconfig)
	if err != nil {
		return false, fmt.Errorf("ask for DaemonSet %s: %w", d.options.daemonSet, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), standsTimeout)
	defer cancel()
	return stands(ctx, api, d.options.daemonSet)
}

// stands asks the API server whether a DaemonSet (NAMESPACE/NAME) is there and is not being deleted. Without the rights to
// ask, which uninstalling takes away as well, it is not.
func stands(ctx context.Context, config *rest.Config, daemonSet string) (bool, error) {
	client, err := apiserver.NewClient(config, schema.GroupVersion{Group: "apps", Version: "v1"})
	if err != nil {
		return false, fmt.Errorf("ask for DaemonSet %s: %w", daemonSet, err)
	}
	namespace, name, _ := strings.Cut(daemonSet, "/")
	text, err := client.Get().Namespace(namespace).Resource("daemonsets").Name(name).Do(ctx).Raw()
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return false, nil
	}
	var object metav1.PartialObjectMetadata
	if err == nil {
		err = json.Unmarshal(text, &object)
	}
	if err != nil {
		return false, fmt.Errorf("ask for DaemonSet %s: %w", daemonSet, err)
	}
	return object.DeletionTimestamp == nil, nil
}

// checkOwner refuses what cannot be a DaemonSet's place.
func checkOwner(text string) error {
	if namespace, name, both := strings.Cut(text, "/"); text != "" && (!both || namespace == "" || name == "" || strings.Contains(name, "/")) {
		return fmt.Errorf("--daemonset %q: want NAMESPACE/NAME", text)
	}
	return nil
}
