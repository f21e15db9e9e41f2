package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

func TestClaimsSurviveARestart(t *testing.T) {
	n := newNode(t, "dra: {enabled: true}")
	claim := claims.Claim{UID: "uid", Namespace: "ns", Name: "claim", Pods: []string{"pod"}, Parts: []claims.Part{
		{Request: "mem", Node: 1, Amounts: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 2 * mi}, {Type: memorymanager.Memory, Bytes: gi}}},
		{Request: "more", Node: 0, Amounts: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 2 * gi}}},
	}}
	if err := n.PrepareClaim(context.Background(), claim); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if diff := cmp.Diff([]claims.Claim{claim}, n.Claims()); diff != "" {
		t.Error(diff)
	}
	if err := n.UnprepareClaim(context.Background(), "uid"); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if claims := n.Claims(); len(claims) > 0 {
		t.Errorf("%v", claims)
	}
}

func TestBadFilesOfClaims(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"no JSON":    {"{", "unexpected end of JSON input"},
		"version":    {`{"version":2}`, "version is 2, want 1"},
		"UID":        {`{"version":1,"claims":[{"uid":"../x"}]}`, `claims[0].uid is "../x", want the UID of another claim`},
		"twice":      {`{"version":1,"claims":[{"uid":"a"},{"uid":"a"}]}`, `claims[1].uid is "a", want the UID of another claim`},
		"NUMA node":  {`{"version":1,"claims":[{"uid":"a","devices":[{"numaNode":64}]}]}`, "claims[0].devices[0].numaNode is 64, want 0 to 63"},
		"below zero": {`{"version":1,"claims":[{"uid":"a","devices":[{"numaNode":-1}]}]}`, "claims[0].devices[0].numaNode is -1, want 0 to 63"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := decodeClaims([]byte(test.text)); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
			path := filepath.Join(t.TempDir(), claimsFile)
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			n := newNode(t, "")
			if claims := loadClaims(path, n.Agent.log); claims != nil {
				t.Errorf("%v", claims)
			}
			if kept, _ := filepath.Glob(path + ".corrupt-*"); len(kept) != 1 {
				t.Errorf("the bad file is kept as %v", kept)
			}
		})
	}
}

func TestWithoutDRAThereIsNoFileOfClaims(t *testing.T) {
	n := newNode(t, "")
	n.restart()
	if _, err := os.Stat(filepath.Join(n.state, claimsFile)); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}
