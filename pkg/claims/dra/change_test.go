package dra

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
)

// A change of a claim that waits for the API server holds the next one up no longer than that has time.
func TestAChangeOfAClaimWaitsNoLongerThanItsContext(t *testing.T) {
	entered, gate := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-gate
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	log, _ := logtest.NewNullLogger()
	d := New(Options{Client: client, Name: "driver", Node: "node", CDI: t.TempDir(), Log: log})
	claim := claims.Claim{UID: "uid", Namespace: "default", Name: "claim"}
	first := make(chan error, 1)
	go func() { _, err := d.prepare(context.Background(), claim); first <- err }()
	<-entered

	ended, end := context.WithCancel(context.Background())
	end()
	const want = "another change of claim uid is under way: context canceled"
	if _, err := d.prepare(ended, claim); !errors.Is(err, context.Canceled) || err.Error() != "prepare claim default/claim: "+want {
		t.Errorf("preparing it: %v", err)
	}
	if err := d.unprepare(ended, claim.UID); !errors.Is(err, context.Canceled) || err.Error() != "release claim: "+want {
		t.Errorf("releasing it: %v", err)
	}
	if err := d.settleOne(ended, claim.UID); !errors.Is(err, context.Canceled) {
		t.Errorf("looking it up: %v", err)
	}
	close(gate)
	<-first
	d.changes.Range(func(uid, _ any) bool {
		t.Errorf("the change of %v is still under way", uid)
		return true
	})
}
