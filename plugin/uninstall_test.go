package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestDaemonSetStands plays the API server's answers while a release is updated and while it is uninstalled.
func TestDaemonSetStands(t *testing.T) {
	t.Parallel()
	const object = `{"kind": "DaemonSet", "apiVersion": "apps/v1", "metadata": {"name": "nri-memory-manager"%s}}`
	for name, c := range map[string]struct {
		status int
		body   string
		want   bool
		err    string
	}{
		"it stands":         {200, strings.ReplaceAll(object, "%s", ""), true, ""},
		"it is deleted":     {200, strings.ReplaceAll(object, "%s", `, "deletionTimestamp": "2026-01-01T00:00:00Z"`), false, ""},
		"it is gone":        {404, `{"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}`, false, ""},
		"the role is gone":  {403, `{"kind": "Status", "apiVersion": "v1", "reason": "Forbidden", "code": 403}`, false, ""},
		"the token is gone": {401, "", false, ""},
		"it is not known":   {500, "", false, "ask for DaemonSet kube-system/nri-memory-manager: an error on the server"},
		"no JSON":           {200, "<html>", false, "ask for DaemonSet kube-system/nri-memory-manager: invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.URL.Path
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			got, err := stands(t.Context(), &rest.Config{Host: server.URL}, "kube-system/nri-memory-manager")
			if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("got %t, %v; want %t, %q", got, err, c.want, c.err)
			}
			if want := "/apis/apps/v1/namespaces/kube-system/daemonsets/nri-memory-manager"; asked != want {
				t.Errorf("asked for %s, want %s", asked, want)
			}
		})
	}
}

func TestDaemonSetHasANamespace(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a", "/a", "a/", "a/b/c"} {
		if err := checkOwner(text); err == nil || err.Error() != `--daemonset "`+text+`": want NAMESPACE/NAME` {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "kube-system/nri-memory-manager"} {
		if err := checkOwner(text); err != nil {
			t.Error(err)
		}
	}
}
