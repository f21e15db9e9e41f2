package strictyaml

import (
	"strconv"
	"strings"
)

// longestQuote bounds, in bytes, what an error repeats of the file.
const longestQuote = 80

// quote shows a text of the file on one line, escaped and shortened.
func quote(text string) string {
	if len(text) > longestQuote {
		return strconv.Quote(text[:longestQuote]) + "…"
	}
	return strconv.Quote(text)
}

// join adds a key to a path; keys that are not plain names are quoted.
func join(path, key string) string {
	for _, r := range key {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/", r) {
			key = quote(key)
			break
		}
	}
	if len(key) > longestQuote {
		key = quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
