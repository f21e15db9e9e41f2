package recording

import (
	"bytes"
	"encoding/json"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// state is what a segment begins with: everything that a ledger remembers.
type state = ledger.State

// resume makes the ledger of a segment's state.
func resume(text json.RawMessage) (*ledger.Ledger, error) {
	var s state
	if err := strict(text, &s); err != nil {
		return nil, err
	}
	return ledger.Open(s)
}

// strict decodes JSON that has no fields but those of the type.
func strict(text []byte, into any) error {
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	return in.Decode(into)
}
