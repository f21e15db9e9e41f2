package nriplugin

import (
	"math"

	"github.com/containerd/nri/pkg/api"
)

// events returns the events to subscribe to at a runtime with this version of NRI. A runtime refuses a plugin that subscribes to an event
// that it does not know.
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

// EventNames returns the names that an Observer may be called with: the events of the newest runtime, and Synchronize, which needs no
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

// knowsFailurePolicies reports whether a plugin can tell the runtime what to do with an event that it does not answer in time. Older
// runtimes close the connection and go on.
func knowsFailurePolicies(nri Version) bool { return nri.AtLeast(0, 12, 4) }

// allowsUnsolicited reports whether a plugin may send unsolicited updates. Up to NRI 0.12.0 such a call can block the runtime forever if an
// event is being sent at the same time.
func allowsUnsolicited(nri Version) bool { return nri.AtLeast(0, 12, 1) }

// repliesUnified reports whether the runtime applies the unified keys in the reply to UpdateContainer. CRI-O up to 1.35 drops them
// (cri-o#9816).
func repliesUnified(runtime, runtimeVersion string) bool {
	switch runtime {
	case "cri-o", "crio":
		return ParseVersion(runtimeVersion).AtLeast(1, 36, 0)
	}
	return true
}

// appliesMemoryPolicies reports whether the runtime sets a new container's memory policy. containerd 2.3 and CRI-O 1.37, which contain NRI
// 0.12, are the first that do. Older ones silently drop it.
func appliesMemoryPolicies(nri Version) bool { return nri.AtLeast(0, 12, 0) }

// appliesOOMScores reports whether the runtime sets a new container's oom_score_adj. NRI 0.7 has it first; older ones silently drop it.
func appliesOOMScores(nri Version) bool { return nri.AtLeast(0, 7, 0) }
