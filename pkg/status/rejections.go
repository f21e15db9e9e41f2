package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

func outcome(r *ledger.Rejection) string {
	text := "rejected"
	if !r.Refused {
		text = "runs unpinned"
	}
	if r.Count > 1 {
		text += fmt.Sprintf(", %d times", r.Count)
	}
	return text
}

// current are the view's rejections, and one for each container that runs unpinned and whose rejection the view has dropped meanwhile.
func current(view *ledger.View) []ledger.Rejection {
	list := slices.Clone(view.Rejections)
	for _, c := range view.Containers() {
		if c.Unplaced != nil && !slices.ContainsFunc(list, c.Unplaced.Same) {
			list = append(list, *c.Unplaced)
		}
	}
	return list
}

// rejections joins what a container was rejected for again and again: the kubelet tries to create it until it succeeds. Those
// of a pod follow each other; the newest come first.
func rejections(views []ledger.Rejection) []ledger.Rejection {
	list, known := make([]ledger.Rejection, 0, len(views)), map[ledger.Rejection]int{}
	for _, r := range views {
		key := r
		key.At, key.Last, key.Count, key.Text, key.BarredBy, key.Helps = time.Time{}, time.Time{}, 0, "", "", ""
		at, again := known[key]
		if !again {
			known[key] = len(list)
			list = append(list, r)
			continue
		}
		joined := &list[at]
		if r.At.Before(joined.At) {
			joined.At = r.At
		}
		if r.Last.After(joined.Last) {
			joined.Last, joined.Text, joined.BarredBy, joined.Helps = r.Last, r.Text, r.BarredBy, r.Helps
		}
		joined.Count += r.Count
	}
	newest := map[[2]string]time.Time{}
	for _, r := range list {
		if pod := [2]string{r.Namespace, r.Pod}; r.Last.After(newest[pod]) {
			newest[pod] = r.Last
		}
	}
	slices.SortStableFunc(list, func(a, b ledger.Rejection) int {
		return cmp.Or(
			newest[[2]string{b.Namespace, b.Pod}].Compare(newest[[2]string{a.Namespace, a.Pod}]),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
			b.Last.Compare(a.Last),
		)
	})
	return list
}

// writeRejections writes a block for each pod.
func (d *Document) writeRejections(b *strings.Builder) {
	if len(d.Rejections) == 0 {
		return
	}
	fmt.Fprintln(b, "REJECTED OR UNPINNED")
	for rest := d.Rejections; len(rest) > 0; {
		first, n, last, count := rest[0], 0, rest[0].Last, 0
		for ; n < len(rest) && rest[n].Namespace == first.Namespace && rest[n].Pod == first.Pod; n++ {
			count += rest[n].Count
			if rest[n].Last.After(last) {
				last = rest[n].Last
			}
		}
		fmt.Fprintf(b, "%s UTC  %s/%s", last.UTC().Format(time.DateTime), first.Namespace, first.Pod)
		indent := "    "
		if n > 1 {
			fmt.Fprintf(b, ", %d times:\n", count)
			indent += "    "
		}
		for _, r := range rest[:n] {
			if n > 1 {
				fmt.Fprint(b, "   ")
			}
			fmt.Fprintf(b, " %s, %s (%s):\n%s%s\n", r.Container, outcome(&r), r.Reason, indent, strings.ReplaceAll(r.Text, "\n", "\n"+indent))
		}
		rest = rest[n:]
	}
}
