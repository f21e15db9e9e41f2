package recording

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// kinds are the events of the ledger by the names of their types.
var kinds = func() map[string]reflect.Type {
	named := map[string]reflect.Type{}
	for _, event := range []ledger.Event{
		ledger.AbandonContainer{}, ledger.FinishUnsolicited{}, ledger.Connected{}, ledger.CreateContainer{}, ledger.Disconnected{},
		ledger.EndContainer{}, ledger.EndPod{}, ledger.FailUpdate{},
		ledger.NodeMemorySampled{}, ledger.Observed{}, ledger.PodFacts{}, ledger.PrepareClaim{},
		ledger.Presence{}, ledger.Raise{}, ledger.Reconfigure{}, ledger.RejectConfig{}, ledger.Resend{}, ledger.RunPod{},
		ledger.FinishUpdate{}, ledger.StartContainer{}, ledger.SyncContainers{}, ledger.Synchronize{}, ledger.UnprepareClaim{}, ledger.UpdateContainer{},
		ledger.UpdatePod{},
	} {
		named[kindOf(event)] = reflect.TypeOf(event)
	}
	return named
}()

func kindOf(event ledger.Event) string { return reflect.TypeOf(event).Name() }

func decodeEvent(kind string, text json.RawMessage) (ledger.Event, error) {
	of, known := kinds[kind]
	if !known {
		return nil, fmt.Errorf("kind %q is not known: was it recorded by another version?", kind)
	}
	event := reflect.New(of)
	if err := strict(text, event.Interface()); err != nil {
		return nil, fmt.Errorf("%s: %w: was it recorded by another version?", kind, err)
	}
	return event.Elem().Interface().(ledger.Event), nil
}

// strict decodes JSON that has no fields but those of the type.
func strict(text []byte, into any) error {
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	return in.Decode(into)
}

// effects are what is recorded of a Step's: all but the notes for the log, with errors as their texts.
type effects struct {
	ledger.Effects
	Err string `json:",omitempty"`
}

// encodeEffects returns the JSON in which effects are recorded and compared.
func encodeEffects(of ledger.Effects) (json.RawMessage, error) {
	out := effects{Effects: of}
	if of.Err != nil {
		out.Err = of.Err.Error()
	}
	return json.Marshal(out)
}
