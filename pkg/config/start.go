package config

import (
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// StartKeys returns the keys that differ in another configuration and that only a start of the daemon can put in force: services and
// sources are made of them.
func (c Config) StartKeys(next Config) (keys []string) {
	for _, key := range []struct {
		name     string
		was, now any
	}{
		{"requestSources", c.podAPIs(), next.podAPIs()},
		{"resourceSlices", c.ResourceSlices, next.ResourceSlices},
		{"events", c.Events, next.Events},
		{"evictRejectedAfter", c.EvictRejectedAfter > 0, next.EvictRejectedAfter > 0},
		{"nodeResourceTopology", c.NodeResourceTopology, next.NodeResourceTopology},
		{"failurePolicy", c.FailurePolicy, next.FailurePolicy},
		{"dra.enabled", c.DRA.Enabled, next.DRA.Enabled},
	} {
		if key.was != key.now {
			keys = append(keys, key.name)
		}
	}
	return keys
}

// AsksPodAPI reports whether requestSources have the daemon ask the kubelet's pod API or the API server.
func (c Config) AsksPodAPI() bool { return c.podAPIs() != "" }

// podAPIs are the sources that connections are made to. The others are read from events, and may change at any time.
func (c Config) podAPIs() string {
	if len(c.RequestSources) == 0 {
		return "found out"
	}
	var apis []string
	for _, source := range c.RequestSources {
		if source == memoryqos.SourceKubelet || source == memoryqos.SourceAPIServer {
			apis = append(apis, string(source))
		}
	}
	return strings.Join(apis, ", ")
}
