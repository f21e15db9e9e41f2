package recording

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// named are the log's fields that say what a decision is about, not what was decided.
var named = []string{"pod", "namespace", "uid", "container", "containerID"}

// String is the decision in a line, and in two more what differs.
func (d Decision) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %d  %s", d.At.UTC().Format("2006-01-02T15:04:05.000Z"), d.Event, d.Kind)
	if d.Pod != "" {
		fmt.Fprintf(&b, " %s", d.Pod)
	}
	if d.Container != "" {
		fmt.Fprintf(&b, " %s", d.Container)
	}
	if d.Err != nil {
		fmt.Fprintf(&b, ": refused: %v", d.Err)
	} else {
		d.writeFields(&b)
	}
	if d.Differs() {
		fmt.Fprintf(&b, "\nDIFFERS  recorded %s\n         replayed %s", d.Outcome, d.Replayed)
	}
	return b.String()
}

// writeFields writes what the log says of the decision.
func (d Decision) writeFields(b *strings.Builder) {
	for _, field := range slices.Sorted(maps.Keys(d.Fields)) {
		text := fmt.Sprint(d.Fields[field])
		if text == "" || slices.Contains(named, field) {
			continue
		}
		if strings.ContainsAny(text, " \"\n") {
			text = strconv.Quote(text)
		}
		fmt.Fprintf(b, " %s=%s", field, text)
	}
}

// String is the summary's line.
func (s Summary) String() string {
	return fmt.Sprintf("%d events, %d decisions, %d differ", s.Events, s.Decisions, s.Differ)
}
