package recording

import (
	"reflect"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// kinds are the events of the ledger by the names of their types.
var kinds = func() map[string]reflect.Type {
	named := map[string]reflect.Type{}
	for _, event := range []ledger.Event{
		ledger.AbandonContainer{}, ledger.SyncContainers{}, ledger.Connected{}, ledger.CreateContainer{}, ledger.Disconnected{},
		ledger.EndContainer{}, ledger.EndPod{}, ledger.FailUpdate{}, ledger.IncludeAll{}, ledger.Observed{}, ledger.ObservedPod{}, ledger.PodFacts{}, ledger.Presence{},
		ledger.Raise{}, ledger.Reconfigure{}, ledger.RejectConfig{}, ledger.Resend{}, ledger.RunPod{}, ledger.Settled{}, ledger.StartContainer{},
		ledger.Synchronize{}, ledger.UpdateContainer{}, ledger.UpdatePod{}, ledger.PrepareClaim{}, ledger.UnprepareClaim{},
		ledger.NodeMemorySampled{}, ledger.MoveStored{},
	} {
		named[kindOf(event)] = reflect.TypeOf(event)
	}
	return named
}()

func kindOf(event ledger.Event) string { return reflect.TypeOf(event).Name() }
