package claims

import "testing"

const gi = uint64(1) << 30

func TestLimitAbove(t *testing.T) {
	for want, test := range map[string]struct{ limit, claimed uint64 }{
		"": {gi, gi},
		"it has no memory limit, and its resource claims have 2Gi":                         {0, 2 * gi},
		"its memory limit of 4Gi is above the 2Gi that its resource claims have":           {4 * gi, 2 * gi},
		"its memory limit of 1.000000001Gi is above the 1Gi that its resource claims have": {gi + 1, gi},
	} {
		if got := LimitAbove(test.limit, test.claimed); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
