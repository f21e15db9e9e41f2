package dra

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	kresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// testLedger has room for every claim.
type testLedger struct {
	prepared claims.Prepared
	changed  chan string // receives the UID of each claim
}

func (l *testLedger) PrepareClaim(_ context.Context, claim claims.Claim) error {
	l.prepared[claim.UID] = &claim
	l.changed <- claim.UID
	return nil
}

func (l *testLedger) UnprepareClaim(_ context.Context, uid string) error {
	delete(l.prepared, uid)
	l.changed <- uid
	return nil
}

func (l *testLedger) View() *ledger.View {
	return &ledger.View{Claims: l.prepared.List(), Conditions: []ledger.Condition{{Name: ledger.ConditionSynchronized, OK: true}}}
}

// testDriver is the driver of a node on which every claim is allocated 2Gi of NUMA node 1, but those that have gone: "freed" is allocated, and
// reserved for no pod.
func testDriver(t *testing.T, gone ...string) (*Driver, *testLedger) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		claim := resourceapi.ResourceClaim{}
		claim.Namespace, claim.Name = "default", filepath.Base(r.URL.Path)
		claim.UID = types.UID("uid-" + claim.Name)
		has := !slices.Contains(gone, claim.Name)
		if has || claim.Name != "freed" {
			claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", UID: "pod"}}
		}
		if has || claim.Name == "freed" {
			claim.Status.Allocation = &resourceapi.AllocationResult{}
			claim.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{{
				Request: "mem", Driver: "driver", Pool: "node", Device: "numa-1",
				ConsumedCapacity: map[resourceapi.QualifiedName]kresource.Quantity{"memory": kresource.MustParse("2Gi")},
			}}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(claim)
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	log, _ := logtest.NewNullLogger()
	l := &testLedger{prepared: claims.Prepared{}, changed: make(chan string, 100)}
	return New(Options{Client: client, Name: "driver", Node: "node", CDI: t.TempDir(), Ledger: l, Log: log}), l
}

func named(name string) claims.Claim {
	return claims.Claim{UID: "uid-" + name, Namespace: "default", Name: name}
}

// What a run has prepared is known to the next one, which releases what has ended or cannot be read.
func TestSpecificationsAreTheRecord(t *testing.T) {
	before, _ := testDriver(t)
	for _, name := range []string{"freed", "gone", "kept"} {
		if _, err := before.prepare(t.Context(), named(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"driver-numa-memory_uid-bad.json": "{", "other_uid-a.json": "{", "driver-numa-memory_UID.json": "{"} {
		if err := os.WriteFile(filepath.Join(before.CDI, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, logged := logtest.NewNullLogger()
	found := Prepared(before.CDI, "driver", log)
	part := claims.Part{Request: "mem", Node: 1, Amounts: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 2 * gi}}}
	freed, gone, kept := named("freed"), named("gone"), named("kept")
	for _, claim := range []*claims.Claim{&freed, &gone, &kept} {
		claim.Pods, claim.Parts = []string{"pod"}, []claims.Part{part}
	}
	if diff := cmp.Diff([]claims.Claim{freed, gone, kept}, found); diff != "" || len(logged.Entries) != 1 {
		t.Errorf("%d lines in the log, %s", len(logged.Entries), diff)
	}
	after, l := testDriver(t, "freed", "gone")
	after.specs.dir = before.CDI
	l.prepared[freed.UID], l.prepared[gone.UID], l.prepared[kept.UID] = &freed, &gone, &kept
	after.settle(t.Context())
	if diff := cmp.Diff([]claims.Claim{kept}, l.prepared.List()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{kept.UID}, after.specs.uids()); diff != "" {
		t.Error(diff)
	}
	if entries, _ := os.ReadDir(before.CDI); len(entries) != 3 {
		t.Errorf("the folder has %v, want the other files left alone", entries)
	}
}

// A record that cannot be read, and is not damaged, may be of a claim in use: it stays until it can be.
func TestARecordThatCannotBeReadStays(t *testing.T) {
	d, l := testDriver(t)
	claim := named("kept")
	if _, err := d.prepare(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	delete(l.prepared, claim.UID) // it could not be read at the start either
	path := d.specs.path(claim.UID)
	if err := errors.Join(os.Rename(path, path+".kept"), os.Symlink(path, path)); err != nil {
		t.Fatal(err)
	}
	if err := d.settleOne(t.Context(), claim.UID); !errors.Is(err, unix.ELOOP) {
		t.Errorf("while it cannot be read: %v", err)
	}
	if err := os.Rename(path+".kept", path); err != nil {
		t.Fatal(err)
	}
	if err := d.settleOne(t.Context(), claim.UID); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{claim.UID}, d.specs.uids()); diff != "" || l.prepared[claim.UID] == nil {
		t.Errorf("prepared: %v, %s", l.prepared, diff)
	}
}

// Why a claim keeps its allocation for now is said once, and again after it changed.
func TestWhyAClaimIsNotSettledIsSaidOnce(t *testing.T) {
	d, _ := testDriver(t)
	log, logged := logtest.NewNullLogger()
	d.Log = log
	claim := named("kept")
	if _, err := d.prepare(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	path := d.specs.path(claim.UID)
	for _, step := range []struct {
		from, to string
		done     bool
		lines    int
	}{{path, path + ".kept", false, 1}, {"", "", false, 1}, {path + ".kept", path, true, 1}, {path, path + ".kept", false, 2}} {
		if step.from == path {
			if err := errors.Join(os.Rename(path, step.to), os.Symlink(path, path)); err != nil {
				t.Fatal(err)
			}
		} else if step.from != "" {
			if err := os.Rename(step.from, path); err != nil {
				t.Fatal(err)
			}
		}
		if done := d.settleAll(t.Context()); done != step.done || len(logged.Entries) != step.lines {
			t.Errorf("%+v: done %v, %d lines", step, done, len(logged.Entries))
		}
	}
}

// A claim that is released before it is read again stays released: there is no second release.
func TestAReleasedClaimIsNotReadAgain(t *testing.T) {
	d, l := testDriver(t)
	claim, err := d.prepare(t.Context(), named("a"))
	if err != nil {
		t.Fatal(err)
	}
	if d.Reread(t.Context(), claim); l.prepared[claim.UID] == nil {
		t.Error("it is lost")
	}
	if err := d.unprepare(t.Context(), claim.UID); err != nil {
		t.Fatal(err)
	}
	if d.Reread(t.Context(), claim); len(l.prepared)+len(d.specs.uids()) > 0 {
		t.Errorf("%v and %v are left", l.prepared, d.specs.uids())
	}
}

// A disk that hangs holds up the caller no longer than that has time, and the next change of the claim waits for it.
func TestADiskThatHangs(t *testing.T) {
	d, l := testDriver(t)
	claim := named("a")
	way := d.specs.path(claim.UID) + ".tmp"
	if err := unix.Mkfifo(way, 0o600); err != nil { // opening it waits for a reader
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	go func() { <-l.changed; end() }()
	if _, err := d.prepare(ctx, claim); !errors.Is(err, context.Canceled) || err.Error() != "prepare claim default/a: the change of claim uid-a is still under way: context canceled" {
		t.Errorf("preparing it: %v", err)
	}
	if err := d.unprepare(ctx, claim.UID); !errors.Is(err, context.Canceled) || err.Error() != "release claim: another change of claim uid-a is under way: context canceled" {
		t.Errorf("releasing it: %v", err)
	}
	reader, err := os.OpenFile(way, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := d.unprepare(t.Context(), claim.UID); err != nil {
		t.Error(err)
	}
	if uids := d.specs.uids(); len(uids)+len(l.prepared) > 0 {
		t.Errorf("%v and %v are left", uids, l.prepared)
	}
}
