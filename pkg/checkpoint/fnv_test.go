package checkpoint

import (
	"hash/fnv"
	"math/rand/v2"
	"testing"
)

func TestSpanHashesAsFNV1a(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	bytes := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.UintN(256))
		}
		return b
	}
	for range 300 {
		text := bytes(random.IntN(200))
		s := newSpan(text)
		for range 300 {
			before := bytes(random.IntN(20))
			want := fnv.New32a()
			want.Write(before)
			want.Write(text)
			if got := s.extend(fnv1a(fnvOffset, before)); got != want.Sum32() {
				t.Fatalf("%q after %q: %d, want %d", text, before, got, want.Sum32())
			}
		}
	}
}
