// Package spelling finds the known name that a mistyped word was meant to be: a key of a file, a subcommand, a flag or a value.
package spelling

import (
	"fmt"
	"strings"
)

// longest bounds, in bytes, what is compared of a word: no known name is longer, and a file may have any.
const longest = 80

// Hint is ", did you mean "NAME"?" for the end of an error about a word, and empty where no name is near.
func Hint(word string, names []string) string {
	if name := Nearest(word, names); name != "" {
		return fmt.Sprintf(", did you mean %q?", name)
	}
	return ""
}

// HintOr is Hint, or "; want A, B or C" where no name is near: for names that are few enough to list.
func HintOr(word string, names []string) string {
	if hint := Hint(word, names); hint != "" {
		return hint
	}
	if len(names) == 0 {
		return ""
	}
	return "; want " + List(names)
}

// List is "A, B or C".
func List(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// Nearest returns the name that a word is likely to mean, letters' case aside; of equals one that it begins, else the first. It is empty where
// none is near: a wrong suggestion is worse than none.
func Nearest(word string, names []string) string {
	word = strings.ToLower(word[:min(len(word), longest)])
	best, fewest, begun := "", 0, false
	for _, name := range names {
		begins := strings.HasPrefix(strings.ToLower(name), word)
		if n, near := distance(word, strings.ToLower(name)); near && (best == "" || n < fewest || n == fewest && begins && !begun) {
			best, fewest, begun = name, n, begins
		}
	}
	return best
}

// distance counts the edits between a word and a name, and reports whether they are near: at most one edit for every three letters,
// but one for a short word and never all of its letters, or a name of which the word only leaves out letters, up to half of them.
func distance(word, name string) (n int, near bool) {
	n = edits(word, name)
	mistyped := n <= max(len(word)/3, len(name)/3, 1) && n < min(len(word), len(name))
	part := n == len(name)-len(word) && n <= len(word)
	return n, name != "" && (mistyped || part)
}

// edits is the number of bytes to insert, leave out, replace, or swap with their neighbor (optimal string alignment).
func edits(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(replace, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
