package verify

import (
	"fmt"
	"io"
	"strings"
)

// WriteText writes a report for people.
func (r Report) WriteText(to io.Writer) error {
	var b strings.Builder
	counts := map[Severity]int{}
	for _, f := range r.Findings {
		counts[f.Severity]++
		fmt.Fprintf(&b, "%-7s  %s: %s\n", strings.ToUpper(string(f.Severity)), f.Object, f.What)
		fmt.Fprintf(&b, "         → %s  [%s]\n", f.Do, f.ID)
	}
	if len(r.Findings) > 0 {
		fmt.Fprintln(&b)
	}
	for _, skipped := range r.Skipped {
		fmt.Fprintf(&b, "not looked at: %s\n", skipped)
	}
	verdict := "nothing is wrong"
	if !r.Clean() {
		verdict = several(counts[Error], "error") + ", " + several(counts[Warning], "warning")
	}
	fmt.Fprintf(&b, "%s looked at: %s, %s\n", several(r.Containers, "running container"), verdict, several(counts[Note], "note"))
	_, err := io.WriteString(to, b.String())
	return err
}

func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
