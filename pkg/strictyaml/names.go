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

// Nearest returns the name with the fewest edits to key, letters' case aside; the first of equals.
func Nearest(key string, names []string) string {
	key = strings.ToLower(key[:min(len(key), longestQuote)])
	best, fewest := "", -1
	for _, name := range names {
		if name == "" {
			continue
		}
		if n := edits(key, strings.ToLower(name)); fewest < 0 || n < fewest {
			best, fewest = name, n
		}
	}
	return best
}

// edits is the Levenshtein distance in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
