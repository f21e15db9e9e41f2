package protect

import (
	"fmt"
	"os"
)

func init() {
	impossible = func(s state, e event) {
		fmt.Fprintf(os.Stderr, "event %d in state %d\n", e, s)
		panic("impossible")
	}
}
