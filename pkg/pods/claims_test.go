package pods

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// claimed reads an annotation that is right.
func claimed(t testing.TB, n Node, value string) Claims {
	t.Helper()
	claims, err := n.ReadClaims(map[string]string{ResourcesAnnotation: value})
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

// claimsOf is an annotation of n containers "c0", "c1"… that ask for the same.
func claimsOf(list string, n int, memory any) string {
	var containers []string
	for i := range n {
		containers = append(containers, fmt.Sprintf(`"c%d":{"requests":{"memory":"%v"}}`, i, memory))
	}
	return `{"` + list + `":{` + strings.Join(containers, ",") + `}}`
}

func TestReadClaims(t *testing.T) {
	const thousandth = 8*gi/1000 + 1
	for name, tt := range map[string]struct {
		value string
		want  Claims
		err   string
	}{
		"as the annotator writes it": {
			value: `{"initContainers":{"i":{"requests":{"cpu":"1","memory":"1Gi"}}},"containers":{"a":{"limits":{"memory":"2G"},"requests":{"memory":"1500m"}},"b":{}}}`,
			want:  Claims{Init: map[string]uint64{"i": gi}, App: map[string]uint64{"a": 2, "b": 0}},
		},
		"a limit is a request": {
			value: `{"containers":{"a":{"limits":{"memory":"64Mi"}}}}`,
			want:  Claims{Init: map[string]uint64{}, App: map[string]uint64{"a": 64 * mi}},
		},
		"a request of nothing within a limit": {
			value: `{"containers":{"a":{"limits":{"memory":"64Mi"},"requests":{"memory":"0"}},"b":{"limits":{"memory":"64Mi"},"requests":{"memory":null}}}}`,
			want:  Claims{Init: map[string]uint64{}, App: map[string]uint64{"a": 0, "b": 0}},
		},
		"numbers and escapes": {
			value: `{"containers":{"a":{"requests":{"memory":4096}},"b":{"requests":{"memory":"\u0036\u0034Mi"}}}}`,
			want:  Claims{Init: map[string]uint64{}, App: map[string]uint64{"a": 4096, "b": 64 * mi}},
		},
		"nothing": {value: `{}`, want: Claims{Init: map[string]uint64{}, App: map[string]uint64{}}},
		"empty":   {value: "", err: "want JSON with the resources of initContainers and containers by name: unexpected end of JSON input"},
		"a list":  {value: `[]`, err: "want JSON with the resources of initContainers and containers by name: json: cannot unmarshal array"},
		"a bad quantity": {
			value: `{"containers":{"a":{"requests":{"memory":"1Qi"}}}}`,
			err:   `containers["a"].requests.memory: "1Qi" is not a quantity such as 64Mi, 2G or 4096`,
		},
		"no quantity": {
			value: `{"containers":{"a":{"requests":{"memory":{}}}}}`,
			err:   `containers["a"].requests.memory: "{}" is not a quantity such as 64Mi, 2G or 4096`,
		},
		"an exponent that would take minutes to expand": {
			value: `{"containers":{"a":{"requests":{"memory":"1e300000000"}}}}`,
			err:   `containers["a"].requests.memory: "1e300000000" has an exponent beyond 30`,
		},
		"the first of two errors": {
			value: `{"containers":{"b":{"requests":{"memory":"-1"}},"a":{"requests":{"memory":"-1"}}}}`,
			err:   `containers["a"].requests.memory: -1: want 0 or more`,
		},
		"negative limit of an init container": {
			value: `{"initContainers":{"a":{"limits":{"memory":"-1Ki"}}}}`,
			err:   `initContainers["a"].limits.memory: -1Ki: want 0 or more`,
		},
		"too long":            {value: strings.Repeat(" ", mostClaimBytes) + "{}", err: "64Ki: want at most 64Ki"},
		"too many containers": {value: claimsOf("containers", mostClaims+1, 1), err: "501 containers: want at most 500"},
		"small claims of many containers, which no score confirms": {
			value: claimsOf("containers", 3, 2*thousandth-10),
			want:  Claims{Init: map[string]uint64{}, App: map[string]uint64{"c0": 2*thousandth - 10, "c1": 2*thousandth - 10, "c2": 2*thousandth - 10}},
		},
		"unconfirmed in all": {
			value: claimsOf("containers", 11, 3*thousandth-10),
			err:   "requests of 11 containers exceed by 90.11Mi what oom_score_adj can confirm: want at most 81.92Mi, 1 % of the node's memory",
		},
		"unconfirmed init containers": {
			value: claimsOf("initContainers", 60, 3*thousandth-10),
			err:   "requests of 60 containers exceed by 491.5Mi what oom_score_adj can confirm: want at most 81.92Mi, 1 % of the node's memory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := node8G.ReadClaims(map[string]string{ResourcesAnnotation: tt.value})
			if want := "annotation " + ResourcesAnnotation + ": " + tt.err; tt.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), want) {
					t.Fatalf("got error %v, want %s", err, want)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if claims, err := node8G.ReadClaims(map[string]string{"example.com/other": "{"}); err != nil || claims.App != nil {
		t.Errorf("a pod without the annotation claims %v, %v", claims, err)
	}
}

// Whoever creates a pod of many containers, whatever they ask for, gains no more than 1 % of the node by its annotation.
func TestFalseClaimsOfAPodGainLittle(t *testing.T) {
	for _, node := range []Node{node8G, {MemTotal: 1<<40 + 1}, {MemTotal: 1000}, {}} {
		for _, list := range []string{"containers", "initContainers"} {
			for _, number := range []int{1, 10, 60, 500} {
				for _, score := range []int64{2, 3, 4, 500, 997, 998, 999, 1000} {
					event := Event{Class: memoryqos.Burstable, Container: "c0", OOMScoreAdj: &score}
					without := node.FromEvent(event)
					claim := without.Request + without.Error
					if without.Error > 1<<60 {
						claim = gi
					}
					event.Claims, _ = node.ReadClaims(map[string]string{ResourcesAnnotation: claimsOf(list, number, claim)})
					with := node.FromEvent(event)
					if with.Request > without.Request+without.Error {
						t.Errorf("%d %s with score %d: %+v exceeds %+v", number, list, score, with, without)
					}
					gain := uint64(number) * (max(with.Request, without.Request) - without.Request)
					if gain > node.MemTotal/100+1 || clamped(score) && gain > 0 {
						t.Errorf("%d %s with score %d gain %d of %d bytes", number, list, score, gain, node.MemTotal)
					}
				}
			}
		}
	}
}

func FuzzReadClaims(f *testing.F) {
	f.Add(`{"containers":{"app":{"requests":{"memory":"70Mi"}}}}`, int64(992), "")
	f.Add(`{"initContainers":{"app":{"limits":{"memory":"1e30"}}},"containers":null}`, int64(999), "16777216")
	f.Add(`{"containers":{"app":{"requests":{"memory":"-9223372036854775808"}}}}`, int64(3), "max")
	f.Fuzz(func(t *testing.T, value string, score int64, swap string) {
		claims, err := node8G.ReadClaims(map[string]string{ResourcesAnnotation: value})
		if err != nil && (!strings.Contains(err.Error(), ResourcesAnnotation) || claims.App != nil || claims.Init != nil) {
			t.Errorf("claims %v with error %v", claims, err)
		}
		if len(claims.App)+len(claims.Init) > mostClaims {
			t.Errorf("%d claims", len(claims.App)+len(claims.Init))
		}
		text, err := json.Marshal(claims)
		var back Claims
		if err != nil || json.Unmarshal(text, &back) != nil || !cmp.Equal(claims, back) {
			t.Errorf("%v: %s is read back from JSON as %+v", err, text, back)
		}
		// Whatever the annotation claims, no container gets more than its event allows, nor all together more than 1 %.
		var gain uint64
		for _, list := range []map[string]uint64{claims.App, claims.Init} {
			for container := range list {
				event := Event{Class: memoryqos.Burstable, Container: container, OOMScoreAdj: &score, Unified: map[string]string{"memory.swap.max": swap}}
				without := node8G.FromEvent(event)
				event.Claims = claims
				with := node8G.FromEvent(event)
				if with.Request > without.Request+without.Error {
					t.Errorf("%q: %+v exceeds %+v", value, with, without)
				}
				gain += max(with.Request, without.Request) - without.Request
			}
		}
		if gain > node8G.MemTotal/50 { // a container in both lists is counted twice
			t.Errorf("%q gains %d", value, gain)
		}
	})
}

// A pod as large as the API server admits, and one as large as is read.
func BenchmarkClaimsOfALargePod(b *testing.B) {
	for name, number := range map[string]int{"beyond the limit": 6000, "150 containers": 150, "500 containers": mostClaims} {
		annotations := map[string]string{ResourcesAnnotation: claimsOf("containers", number, "70Mi")}
		node, score := Node{MemTotal: 1 << 40, SwapTotal: gi}, int64(999)
		var names []string
		for i := range 150 {
			names = append(names, fmt.Sprintf("c%d", i))
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				claims, _ := node.ReadClaims(annotations)
				for _, container := range names {
					node.FromEvent(Event{Class: memoryqos.Burstable, Container: container, OOMScoreAdj: &score, Claims: claims})
				}
			}
		})
	}
}
