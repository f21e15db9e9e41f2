package nriplugin

import (
	"math"

	"github.com/containerd/nri/pkg/api"
)

// events returns the events to subscribe to at a runtime with this version of NRI. A runtime refuses a plugin that asks
// for an event it does not know.
func events(nri Version) api.EventMask {
	var mask api.EventMask
	mask.Set(
		api.Event_RUN_POD_SANDBOX,
		api.Event_STOP_POD_SANDBOX,
		api.Event_REMOVE_POD_SANDBOX,
		api.Event_CREATE_CONTAINER,
		api.Event_START_CONTAINER,
		api.Event_UPDATE_CONTAINER,
		api.Event_POST_UPDATE_CONTAINER,
		api.Event_STOP_CONTAINER,
		api.Event_REMOVE_CONTAINER,
	)
	if nri.AtLeast(0, 10, 0) {
		mask.Set(api.Event_UPDATE_POD_SANDBOX)
	}
	return mask
}

// EventNames are what an Observer may be called with: the events of the newest runtime, and the synchronization, which needs no
// subscription.
func EventNames() []string {
	names := []string{"Synchronize"}
	mask := events(Version{Major: math.MaxInt})
	for event := api.Event_UNKNOWN + 1; event <= api.Event_LAST; event++ {
		if mask.IsSet(event) {
			names = append(names, event.PrettyName())
		}
	}
	return names
}

// knowsFailurePolicies reports whether the runtime lets a plugin say what becomes of an event that it does not answer in time. Older
// ones close the connection and go on.
func knowsFailurePolicies(nri Version) bool { return nri.AtLeast(0, 12, 4) }

// unaskedUpdates reports whether a plugin may send updates by itself. Up to NRI 0.12.0 such a call can lock up the
// runtime for good when an event is on its way at the same time.
func unaskedUpdates(nri Version) bool { return nri.AtLeast(0, 12, 1) }

// repliesUnified reports whether the runtime applies the unified keys in the reply to UpdateContainer to the container
// under update. CRI-O up to 1.35 drops them (cri-o#9816).
func repliesUnified(runtime, runtimeVersion string) bool {
	switch runtime {
	case "cri-o", "crio":
		return ParseVersion(runtimeVersion).AtLeast(1, 36, 0)
	}
	return true
}

// appliesMemoryPolicies reports whether the runtime sets a new container's memory policy: containerd 2.3 and CRI-O 1.37, which
// contain NRI 0.12, are the first that do. Older ones drop it silently.
func appliesMemoryPolicies(nri Version) bool { return nri.AtLeast(0, 12, 0) }
