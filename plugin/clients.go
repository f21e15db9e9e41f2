package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims/dra"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/events"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/evict"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodetopology"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

var errNodeName = errors.New("the node's name is not known: give --node-name, or NODE_NAME in the environment")

// podSources are the sources of memory requests beside the runtime's events.
func (o *apiOptions) podSources(c config.Config, kubeletSocket string, log logrus.FieldLogger) ([]podinfo.Provider, error) {
	at := podinfo.Places{KubeletSocket: kubeletSocket, Kubeconfig: o.kubeconfig, Node: o.nodeName}
	if at.Node == "" && at.Kubeconfig != "" {
		at.Node, _ = os.Hostname() // in a pod it would be the pod's name
	}
	return podinfo.Providers(c.RequestSources, at, log)
}

// clientFor makes a client of the API server for what needs this node's name in it.
func clientFor[T any](o *apiOptions, newClient func(*rest.Config) (T, error)) (client T, err error) {
	credentials, err := apiserver.Config(o.kubeconfig)
	switch {
	case err != nil:
		return client, err
	case o.nodeName == "":
		return client, errNodeName
	}
	credentials.Transport = o.transport
	return newClient(credentials)
}

// tryClient says why a client that is wanted cannot be made.
func tryClient[T any](o *apiOptions, wanted bool, newClient func(*rest.Config) (T, error)) (err error) {
	if wanted {
		_, err = clientFor(o, newClient)
	}
	return err
}

// checkClients makes the clients that run makes when it starts, and returns the errors that would end it. What depends on
// where run is started, the service account of its pod and NODE_NAME, is a warning.
func (o *apiOptions) checkClients(c config.Config) (warnings []string, err error) {
	var errs []error
	note := func(key string, err error) {
		if err == nil {
			return
		}
		_, unreadable := apiserver.Config(o.kubeconfig)
		switch {
		case unreadable != nil && o.kubeconfig != "":
			errs = append(errs, fmt.Errorf("--kubeconfig: %w", unreadable))
		case errors.Is(err, rest.ErrNotInCluster):
			warnings = append(warnings, c.Errorf(key, "the credentials for the API server are those of the pod in which run is started; outside of one, give --kubeconfig").Error())
		case errors.Is(err, errNodeName):
			warnings = append(warnings, c.Errorf(key, "%v", err).Error())
		default:
			errs = append(errs, c.Errorf(key, "%v", err))
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	_, err = o.podSources(c, "", log)
	note("requestSources", err)
	note("events", tryClient(o, c.Events, events.NewSink))
	note("evictRejectedAfter", tryClient(o, c.EvictRejectedAfter > 0, evict.NewAPI))
	note("nodeResourceTopology", tryClient(o, c.NodeResourceTopology, nodetopology.NewClient))
	note("dra", tryClient(o, c.DRA.Enabled, dra.NewClient))
	note("resourceSlices", tryClient(o, c.ResourceSlices, dra.NewClient))
	return warnings, strictyaml.Join(errs...)
}
