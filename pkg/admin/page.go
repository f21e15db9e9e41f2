package admin

import (
	_ "embed"
	"net/http"
)

//go:embed page.html
var page []byte

// Page serves the NUMA memory map: one page that asks /status every few seconds, /history twice a minute, and
// /explain for the pod that is picked.
func Page() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'")
		header.Set("Cache-Control", "no-cache")
		_, _ = w.Write(page) // the client went away
	})
}
