package agent

import (
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// The ledger's names, as the tests use them.
type (
	Pod           = ledger.Pod
	Container     = ledger.Container
	State         = ledger.Phase
	Resources     = ledger.Resources
	HugepageLimit = ledger.HugepageLimit
	Adjustment    = ledger.Adjustment
	Update        = ledger.Update
	Runtime       = ledger.Runtime
	View          = ledger.View
	PodView       = ledger.PodView
	ContainerView = ledger.ContainerView
	Rejection     = ledger.Rejection
	Explanation   = ledger.Explanation
)

const (
	Unknown  = ledger.Unknown
	Creating = ledger.Creating
	Created  = ledger.Created
	Running  = ledger.Running
	Paused   = ledger.Paused
	Stopped  = ledger.Stopped
)

// with lays an adjustment over what a container has, as a runtime does.
func with(r Resources, a Adjustment) Resources {
	if a.CpusetMems != "" {
		r.Mems = a.CpusetMems
	}
	if len(a.Unified) > 0 {
		r.Unified = maps.Clone(r.Unified)
		if r.Unified == nil {
			r.Unified = map[string]string{}
		}
		maps.Copy(r.Unified, a.Unified)
	}
	return r
}
