package strictyaml

import (
	"strconv"
	"strings"
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

// join adds a key to a path; keys that are not plain names are quoted.
func join(path, key string) string {
	for _, r := range key {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/", r) {
			key = Quote(key)
			break
		}
	}
	if len(key) > longestQuote {
		key = Quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
