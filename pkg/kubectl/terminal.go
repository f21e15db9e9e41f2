package kubectl

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// printable is a text without characters that a terminal obeys or that hide others, but for ends of lines and tabs. Each is written as
// JSON writes it, such as \u001b for Escape: in a JSON document that is the same value. What a node says is not trusted: one that
// was taken over must not write to the user's terminal as it likes.
func printable(text string) string {
	obeyed := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
	text = strings.ToValidUTF8(text, "\uFFFD")
	if !strings.ContainsFunc(text, obeyed) {
		return text
	}
	var shown strings.Builder
	for _, r := range text {
		if !obeyed(r) {
			shown.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&shown, `\u%04x`, unit)
		}
	}
	return shown.String()
}

// inLine is a printable text in one line.
func inLine(text string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(text))
}
