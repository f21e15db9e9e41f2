package main

import (
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

func TestKeysThatNeedARestart(t *testing.T) {
	for lines, want := range map[string]string{
		"requestSources: [kubelet]\nrequestTimeout: 1s\nreconcilePeriod: 1m\nstallGuard: {stall: 1s}\ndryRun: true": "",
		"requestSources: [apiserver, kubelet]":                                           "requestSources",
		"requestSources: []":                                                             "requestSources",
		"requestSources: [kubelet]\nkubeconfig: /nowhere\nnodeName: other":               "kubeconfig nodeName",
		"requestSources: [kubelet]\npodResources: {enabled: false}":                      "podResources.enabled",
		"requestSources: [kubelet, swap]\nevents: {enabled: true}":                       "events.enabled",
		"requestSources: [kubelet]\nresourceSlices: {enabled: true}":                     "resourceSlices.enabled",
		"requestSources: [kubelet]\nnodeResourceTopology: {enabled: true, interval: 1m}": "nodeResourceTopology.enabled nodeResourceTopology.interval",
	} {
		parse := func(lines string) config.Config {
			c, err := config.Files(nil).Parse("config.yaml", []byte(lines))
			must(t, err)
			return c
		}
		if got := strings.Join(startKeys(parse("requestSources: [kubelet, oomscore]"), parse(lines)), " "); got != want {
			t.Errorf("%q: %q, want %q", lines, got, want)
		}
	}
}

func TestAReloadWarnsOfKeysThatNeedARestart(t *testing.T) {
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	h.write("config.yaml", testConfig+"events: {enabled: true}\n")
	said(plugin, `level=warning msg="these keys are taken at the start of the plugin only: what it was started with stays in force" keys=events.enabled`)
}
