package main

import (
	"errors"
	"io"
	"os"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims/dra"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/events"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodetopology"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// nodeName is this node's name in the API, as configured or from the environment.
func nodeName(c config.Config) string {
	if c.NodeName != "" {
		return c.NodeName
	}
	return os.Getenv("NODE_NAME")
}

var errNodeName = errors.New("the node's name is not known: set nodeName, or NODE_NAME in the environment")

// podSources are the sources of memory requests beside the runtime's events.
func podSources(c config.Config, kubeletSocket string, log logrus.FieldLogger) ([]podinfo.Provider, error) {
	at := podinfo.Places{KubeletSocket: kubeletSocket, Kubeconfig: c.Kubeconfig, Node: nodeName(c)}
	if at.Node == "" && at.Kubeconfig != "" {
		at.Node, _ = os.Hostname() // in a pod it would be the pod's name
	}
	return podinfo.Providers(c.RequestSources, at, log)
}

// apiClient returns the credentials for the API server and this node's name in it.
func apiClient(c config.Config) (*rest.Config, string, error) {
	credentials, err := apiserver.Config(c.Kubeconfig)
	if err != nil {
		return nil, "", err
	}
	if node := nodeName(c); node != "" {
		return credentials, node, nil
	}
	return nil, "", errNodeName
}

// clientFor makes a client of the API server, and returns this node's name in it.
func clientFor[T any](c config.Config, newClient func(*rest.Config) (T, error)) (client T, node string, err error) {
	credentials, node, err := apiClient(c)
	if err == nil {
		client, err = newClient(credentials)
	}
	return client, node, err
}

// checkClients makes the clients that run makes when it starts, and returns the errors that would end it. What depends on
// where run is started, the service account of its pod and NODE_NAME, is a warning.
func checkClients(c config.Config) (warnings []string, err error) {
	var errs []error
	note := func(key string, err error) {
		if err == nil {
			return
		}
		if _, unreadable := apiserver.Config(c.Kubeconfig); unreadable != nil && c.Kubeconfig != "" {
			key, err = "kubeconfig", unreadable
		}
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			warnings = append(warnings, c.Errorf(key, "the credentials for the API server are those of the pod in which run is started; outside of one, set kubeconfig").Error())
		case errors.Is(err, errNodeName):
			warnings = append(warnings, c.Errorf(key, "%v", err).Error())
		default:
			errs = append(errs, c.Errorf(key, "%v", err))
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	_, err = podSources(c, "", log)
	note("requestSources", err)
	if c.Events.Enabled {
		_, _, err := clientFor(c, events.NewSink)
		note("events", err)
	}
	if c.NodeResourceTopology.Enabled {
		_, _, err := clientFor(c, nodetopology.NewClient)
		note("nodeResourceTopology", err)
	}
	if c.DRA.Enabled {
		_, _, err := clientFor(c, dra.NewClient)
		note("dra", err)
	}
	if c.ResourceSlices.Enabled {
		_, _, err := clientFor(c, dra.NewClient)
		note("resourceSlices", err)
	}
	return warnings, strictyaml.Join(errs...)
}
