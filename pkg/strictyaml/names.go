package strictyaml

import (
	"regexp"
	"strconv"
)

// longestQuote bounds, in bytes, what an error repeats of the file.
const longestQuote = 80

// Quote shows a text of a file or flag in an error: on one line, escaped and shortened.
func Quote(text string) string {
	if len(text) > longestQuote {
		return strconv.Quote(text[:longestQuote]) + "…"
	}
	return strconv.Quote(text)
}

var plainName = regexp.MustCompile(`^[a-zA-Z0-9._/-]*$`)

// join adds a key to a path; keys that are not plain names are quoted.
func join(path, key string) string {
	if len(key) > longestQuote || !plainName.MatchString(key) {
		key = Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
