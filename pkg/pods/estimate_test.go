package pods

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

var node8G = Node{MemTotal: 8 * gi, SwapTotal: 2 * gi}

func TestEstimateFromTheEventAlone(t *testing.T) {
	// Of 8 GiB a thousandth is 8589934.592 bytes: a score of 992 is 8 of them.
	bracket992 := Estimate{Request: 68719477, Source: memoryqos.SourceOOMScore, Error: 8589934}
	annotation := func(app, request string) Claims {
		return claimed(t, node8G, `{"containers":{"`+app+`":{"requests":{"memory":"`+request+`"}}}}`)
	}
	initAnnotation := func(request string) Claims {
		return claimed(t, node8G, `{"initContainers":{"proxy":{"requests":{"memory":"`+request+`"}}}}`)
	}
	for name, tt := range map[string]struct {
		event Event
		use   []memoryqos.Source
		want  Estimate
	}{
		"Guaranteed is its limit": {
			event: Event{Class: memoryqos.Guaranteed, Limit: 64 * mi, OOMScoreAdj: new(int64(-997))},
			want:  Estimate{Request: 64 * mi, Source: memoryqos.SourceLimit},
		},
		"Guaranteed with a limit of its own beside the pod's": {
			event: Event{Class: memoryqos.Guaranteed, Limit: gi, PodLimit: gi + 1},
			want:  Estimate{Request: gi, Source: memoryqos.SourceLimit},
		},
		"Guaranteed with the pod's limit is unknown": {
			event: Event{Class: memoryqos.Guaranteed, Limit: gi, PodLimit: gi},
			want:  Estimate{Source: memoryqos.SourceNone, Error: gi},
		},
		"Guaranteed without a limit is unknown": {
			event: Event{Class: memoryqos.Guaranteed},
			want:  Estimate{Source: memoryqos.SourceNone, Error: 8 * gi},
		},
		"BestEffort asks for nothing, whatever the annotation says": {
			event: Event{Class: memoryqos.BestEffort, OOMScoreAdj: new(int64(1000)), Claims: annotation("app", "1Gi")},
			want:  Estimate{Source: memoryqos.SourceNone},
		},
		"Burstable by the kubelet's memory.low": {
			event: Event{Class: memoryqos.Burstable, Limit: 128 * mi, OOMScoreAdj: new(int64(992)),
				Unified: map[string]string{"memory.low": "67108865", "memory.min": "0"}},
			want: Estimate{Request: 67108865, Source: memoryqos.SourceUnified},
		},
		"Burstable by memory.min": {
			event: Event{Class: memoryqos.Burstable, Unified: map[string]string{"memory.min": "67108865"}},
			want:  Estimate{Request: 67108865, Source: memoryqos.SourceUnified},
		},
		"memory.low that this plugin estimated from the score is that estimate": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)),
				Unified: map[string]string{"memory.low": "68719477"}},
			want: bracket992,
		},
		"zeros of the kubelet say nothing": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)),
				Unified: map[string]string{"memory.low": "0", "memory.min": "0"}},
			want: bracket992,
		},
		"what is no number says nothing": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)),
				Unified: map[string]string{"memory.low": "max", "memory.min": "-1", "memory.swap.max": "max"}},
			want: bracket992,
		},
		"memory.low above the limit is no request": {
			event: Event{Class: memoryqos.Burstable, Limit: 100 * mi, OOMScoreAdj: new(int64(992)),
				Unified: map[string]string{"memory.low": "104857601"}},
			want: bracket992,
		},
		"an annotation inside the bracket": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Container: "app", Claims: annotation("app", "70Mi")},
			want:  Estimate{Request: 70 * mi, Source: memoryqos.SourceAnnotation},
		},
		"an annotation that claims too much": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Container: "app", Claims: annotation("app", "1Gi")},
			want:  bracket992,
		},
		"an annotation that claims too little": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Container: "app", Claims: annotation("app", "1Mi")},
			want:  bracket992,
		},
		"an annotation above the limit": {
			event: Event{Class: memoryqos.Burstable, Limit: 68719478, OOMScoreAdj: new(int64(992)), Container: "app", Claims: annotation("app", "70Mi")},
			want:  Estimate{Request: 68719477, Source: memoryqos.SourceOOMScore, Error: 1},
		},
		"an annotation without a score to check it by": {
			event: Event{Class: memoryqos.Burstable, Container: "app", Claims: annotation("app", "70Mi")},
			want:  Estimate{Source: memoryqos.SourceNone, Error: 8 * gi},
		},
		"an annotation for other containers": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Container: "app", Claims: annotation("other", "70Mi")},
			want:  bracket992,
		},
		"an annotated sidecar has the score of a larger app container": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Container: "proxy", Claims: initAnnotation("1Mi")},
			want:  Estimate{Request: 1 * mi, Source: memoryqos.SourceAnnotation},
		},
		"an annotated sidecar that claims too much": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Container: "proxy", Claims: initAnnotation("1Gi")},
			want:  bracket992,
		},
		"an annotation at score 999, which confirms nothing": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(999)), Container: "app", Claims: annotation("app", "1")},
			want:  Estimate{Source: memoryqos.SourceOOMScore, Error: 17179869},
		},
		"an annotation at score 999 within a limit": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(999)), Limit: 2 * mi, Container: "app", Claims: annotation("app", "2Mi")},
			want:  Estimate{Source: memoryqos.SourceOOMScore, Error: 2 * mi},
		},
		"an annotation of nothing at score 999": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(999)), Container: "app", Claims: annotation("app", "0")},
			want:  Estimate{Source: memoryqos.SourceAnnotation},
		},
		"an annotated init container at score 999": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(999)), Container: "proxy", Claims: initAnnotation("1Mi")},
			want:  Estimate{Source: memoryqos.SourceOOMScore, Error: 17179869},
		},
		"an annotation at score 998, the first that confirms something": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(998)), Container: "app", Claims: annotation("app", "25769803")},
			want:  Estimate{Request: 25769803, Source: memoryqos.SourceAnnotation},
		},
		"an annotation at score 998 of more than it confirms": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(998)), Container: "app", Claims: annotation("app", "25769804")},
			want:  Estimate{Request: 17179870, Source: memoryqos.SourceOOMScore, Error: 8589933},
		},
		"an annotation at score 4, the last that confirms something": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(4)), Container: "app", Claims: annotation("app", "8564164788")},
			want:  Estimate{Request: 8564164788, Source: memoryqos.SourceAnnotation},
		},
		"an annotation of all at score 3": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(3)), Container: "app", Claims: annotation("app", "8Gi")},
			want:  Estimate{Request: 8564164789, Source: memoryqos.SourceOOMScore, Error: 8*gi - 8564164789},
		},
		"an annotated sidecar at score 3, which is that of an app container": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(3)), Container: "proxy", Claims: initAnnotation("1Mi")},
			want:  Estimate{Request: mi, Source: memoryqos.SourceAnnotation},
		},
		"an annotated sidecar of all at score 3": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(3)), Container: "proxy", Claims: initAnnotation("8Gi")},
			want:  Estimate{Request: 8564164789, Source: memoryqos.SourceOOMScore, Error: 8*gi - 8564164789},
		},
		"an annotation that swap confirms": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(993)), Container: "app", Claims: annotation("app", "64Mi"),
				Unified: map[string]string{"memory.swap.max": "16777216"}},
			want: Estimate{Request: 64 * mi, Source: memoryqos.SourceAnnotation},
		},
		"an annotation within its score that swap refutes": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(993)), Container: "app", Claims: annotation("app", "65Mi"),
				Unified: map[string]string{"memory.swap.max": "16777216"}},
			want: Estimate{Request: 64 * mi, Source: memoryqos.SourceSwap, Error: 3},
		},
		"annotation not to be used": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Container: "app", Claims: annotation("app", "70Mi")},
			use:   []memoryqos.Source{memoryqos.SourceKubelet, memoryqos.SourceOOMScore},
			want:  bracket992,
		},
		"score not to be used": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Limit: gi},
			use:   []memoryqos.Source{memoryqos.SourceKubelet},
			want:  Estimate{Source: memoryqos.SourceNone, Error: gi},
		},
		"swap is finer than the score": {
			// 64 MiB of 8 GiB get 16 MiB of 2 GiB.
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(993)), Unified: map[string]string{"memory.swap.max": "16777216"}},
			want:  Estimate{Request: 64 * mi, Source: memoryqos.SourceSwap, Error: 3},
		},
		"swap and limit": {
			event: Event{Class: memoryqos.Burstable, Limit: 64*mi + 1, Unified: map[string]string{"memory.swap.max": "16777216"}},
			want:  Estimate{Request: 64 * mi, Source: memoryqos.SourceSwap, Error: 1},
		},
		"swap of 0 says nothing": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Unified: map[string]string{"memory.swap.max": "0"}},
			want:  bracket992,
		},
		"swap beyond the node's says nothing": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Unified: map[string]string{"memory.swap.max": "2147483649"}},
			want:  bracket992,
		},
		"swap of more than its score has room for was not made from the request": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(993)), Unified: map[string]string{"memory.swap.max": "33554432"}},
			want:  Estimate{Request: 60129543, Source: memoryqos.SourceOOMScore, Error: 8589933},
		},
		"swap of less than its score, which may be an app container's": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(500)), Unified: map[string]string{"memory.swap.max": "16777216"}},
			want:  Estimate{Request: 64 * mi, Source: memoryqos.SourceSwap, Error: 3},
		},
		"swap under WorkloadControlledSwap": {
			event: Event{Class: memoryqos.Burstable, WorkloadSwap: true, OOMScoreAdj: new(int64(993)), Unified: map[string]string{"memory.swap.max": "16777216"}},
			want:  Estimate{Request: 60129543, Source: memoryqos.SourceOOMScore, Error: 8589933},
		},
		"swap alone under WorkloadControlledSwap": {
			event: Event{Class: memoryqos.Burstable, WorkloadSwap: true, Limit: gi, Unified: map[string]string{"memory.swap.max": "16777216"}},
			want:  Estimate{Source: memoryqos.SourceNone, Error: gi},
		},
		"the kubelet's values in a pod with memory of its own": {
			event: Event{Class: memoryqos.Burstable, OwnMemory: true, Limit: gi, OOMScoreAdj: new(int64(993)), Container: "app", Claims: annotation("app", "64Mi"),
				Unified: map[string]string{"memory.swap.max": "16777216"}},
			want: Estimate{Source: memoryqos.SourceNone, Error: gi},
		},
		"memory.low in a pod with memory of its own is the container's request": {
			event: Event{Class: memoryqos.Burstable, OwnMemory: true, Limit: gi, Unified: map[string]string{"memory.low": "67108864"}},
			want:  Estimate{Request: 64 * mi, Source: memoryqos.SourceUnified},
		},
		"the limit in a Guaranteed pod with memory of its own": {
			event: Event{Class: memoryqos.Guaranteed, OwnMemory: true, Limit: gi},
			want:  Estimate{Source: memoryqos.SourceNone, Error: gi},
		},
		"score 999 may stand for nothing": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(999))},
			want:  Estimate{Source: memoryqos.SourceOOMScore, Error: 17179869},
		},
		"score 3 may stand for all": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(3))},
			want:  Estimate{Request: 8564164789, Source: memoryqos.SourceOOMScore, Error: 8*gi - 8564164789},
		},
		"the limit bounds the error": {
			event: Event{Class: memoryqos.Burstable, Limit: 70 * mi, OOMScoreAdj: new(int64(992))},
			want:  Estimate{Request: 68719477, Source: memoryqos.SourceOOMScore, Error: 70*mi - 68719477},
		},
		"a score of more than the limit was not made from the request": {
			event: Event{Class: memoryqos.Burstable, Limit: 10 * mi, OOMScoreAdj: new(int64(500))},
			want:  Estimate{Source: memoryqos.SourceNone, Error: 10 * mi},
		},
		"node-critical pods do not tell": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(-997)), Limit: gi},
			want:  Estimate{Source: memoryqos.SourceNone, Error: gi},
		},
		"a BestEffort score on a Burstable pod does not tell": {
			event: Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(1000))},
			want:  Estimate{Source: memoryqos.SourceNone, Error: 8 * gi},
		},
		"nothing at all": {
			event: Event{Class: memoryqos.Burstable},
			want:  Estimate{Source: memoryqos.SourceNone, Error: 8 * gi},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := node8G.FromEvent(tt.event, tt.use...)
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got.Exact() != (tt.want.Error == 0) {
				t.Errorf("Exact() is %t with an error of %d", got.Exact(), tt.want.Error)
			}
		})
	}
}

func TestEstimateWithoutKnowingTheNode(t *testing.T) {
	event := Event{Class: memoryqos.Burstable, OOMScoreAdj: new(int64(992)), Unified: map[string]string{"memory.swap.max": "4096"}}
	if got, want := (Node{}).FromEvent(event), (Estimate{Source: memoryqos.SourceNone, Error: math.MaxInt64}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSwapBeyondFloatPrecisionIsNotInverted(t *testing.T) {
	event := Event{Class: memoryqos.Burstable, Unified: map[string]string{"memory.swap.max": "4096"}}
	if got := (Node{MemTotal: maxExact + 1, SwapTotal: gi}).FromEvent(event); got.Source != memoryqos.SourceNone {
		t.Errorf("got %+v, want source none", got)
	}
	// With more swap than memory some values are not made by any request.
	if got := (Node{MemTotal: 1000, SwapTotal: 1 << 40}).FromEvent(event); got.Source != memoryqos.SourceNone {
		t.Errorf("got %+v, want source none", got)
	}
}

// kubeletOOMScore is the kubelet's formula for a Burstable container that is no sidecar and has no pod-level resources
// (pkg/kubelet/qos, Kubernetes 1.36), in its own types.
func kubeletOOMScore(request, capacity int64) int64 {
	score := 1000 - (1000*request)/capacity
	if score < 1000-997 {
		return 1000 - 997
	}
	if score == 1000 {
		return 999
	}
	return score
}

// kubeletSwap is the kubelet's formula of LimitedSwap (KEP-2400).
func kubeletSwap(request, capacity, swap int64) int64 {
	return int64(float64(request) / float64(capacity) * float64(swap))
}

func TestScoreBracketHoldsTheTrueRequest(t *testing.T) {
	check := func(t *testing.T, capacity, request int64) {
		t.Helper()
		score := kubeletOOMScore(request, capacity)
		got := Node{MemTotal: uint64(capacity)}.FromEvent(Event{Class: memoryqos.Burstable, OOMScoreAdj: &score})
		if got.Source != memoryqos.SourceOOMScore || got.Request > uint64(request) || got.Request+got.Error < uint64(request) {
			t.Fatalf("MemTotal %d, request %d, score %d: got %+v", capacity, request, score, got)
		}
		if score > lowestScore && score < highestScore {
			// The bracket is as tight as can be: its ends have the score, their neighbours have not.
			low, high := int64(got.Request), int64(got.Request+got.Error)
			if kubeletOOMScore(low, capacity) != score || kubeletOOMScore(high, capacity) != score ||
				kubeletOOMScore(low-1, capacity) == score || kubeletOOMScore(high+1, capacity) == score {
				t.Fatalf("MemTotal %d, score %d: bracket [%d, %d] is not exact", capacity, score, low, high)
			}
		}
	}
	t.Run("every request of small machines", func(t *testing.T) {
		for _, capacity := range []int64{1000, 1001, 1999, 4096, 65537} {
			for request := range capacity + 1 {
				check(t, capacity, request)
			}
		}
	})
	t.Run("all borders of real machines", func(t *testing.T) {
		for _, capacity := range []int64{1544478720, 8 * gi, 134987354112, 135286722560 * 8, 1 << 45} {
			for k := range int64(1001) {
				border := k * capacity / 1000
				for request := max(border-2, 0); request <= min(border+2, capacity); request++ {
					check(t, capacity, request)
				}
			}
		}
	})
	t.Run("random requests", func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		for range 200_000 {
			capacity := 1000 + random.Int64N(1<<random.IntN(52)+1)
			check(t, capacity, random.Int64N(capacity+1))
		}
	})
}

func TestSwapBracketHoldsTheTrueRequest(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		capacity := 1000 + random.Int64N(1<<(10+random.IntN(32)))
		swap := 1 + random.Int64N(2*capacity)
		request := random.Int64N(capacity + 1)
		given := kubeletSwap(request, capacity, swap)
		if given == 0 {
			continue
		}
		got := Node{MemTotal: uint64(capacity), SwapTotal: uint64(swap)}.FromEvent(Event{
			Class: memoryqos.Burstable, Unified: map[string]string{"memory.swap.max": fmt.Sprint(given)}})
		if got.Source != memoryqos.SourceSwap || got.Request > uint64(request) || got.Request+got.Error < uint64(request) {
			t.Fatalf("MemTotal %d, SwapTotal %d, request %d, memory.swap.max %d: got %+v", capacity, swap, request, given, got)
		}
		for _, end := range []uint64{got.Request, got.Request + got.Error} {
			if kubeletSwap(int64(end), capacity, swap) != given {
				t.Fatalf("MemTotal %d, SwapTotal %d: %d does not get memory.swap.max %d", capacity, swap, end, given)
			}
		}
	}
}
