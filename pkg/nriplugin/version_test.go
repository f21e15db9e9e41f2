package nriplugin

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
)

func TestRuntimeNRIVersion(t *testing.T) {
	for name, test := range map[string]struct {
		told, runtime, version string
		want                   string
	}{
		"told":                               {"v0.12.3", "containerd", "v2.4.2", "0.12.3"},
		"told without v":                     {"0.12.1", "cri-o", "1.38.0", "0.12.1"},
		"pseudo-version lies before its tag": {"v0.9.1-0.20250219030224-e597e7849f24", "cri-o", "1.33.0", "0.9.0"},
		"could not find out itself":          {"0.0.0-unknown", "containerd", "v2.2.1", "0.11.0"},
		"built from its own repository":      {"(devel)", "containerd", "v2.3.1", "0.12.0"},
		"containerd 1.7.0":                   {"", "containerd", "v1.7.0", "0.3.0"},
		"containerd 1.7.20":                  {"", "containerd", "v1.7.20", "0.6.1"},
		"containerd of Ubuntu":               {"", "containerd", "1.7.28-0ubuntu1", "0.8.0"},
		"containerd of Debian":               {"", "containerd", "1.7.24~ds1", "0.6.1"},
		"containerd 2.1":                     {"", "containerd", "v2.1.6", "0.8.0"},
		"containerd 2.2.0":                   {"", "containerd", "v2.2.0", "0.10.0"},
		"containerd 2.4.2":                   {"", "containerd", "v2.4.2", "0.12.3"},
		"containerd of tomorrow":             {"", "containerd", "v3.0.0-rc.1", "0.12.3"},
		"CRI-O has no v":                     {"", "cri-o", "1.34.2", "0.10.0"},
		"CRI-O 1.31":                         {"", "cri-o", "1.31.4", "0.6.0"},
		"CRI-O 1.33":                         {"", "cri-o", "1.33.8", "0.9.0"},
		"CRI-O 1.36":                         {"", "cri-o", "1.36.0", "0.11.0"},
		"CRI-O 1.37 in development":          {"", "cri-o", "1.37.0-dev", "0.12.0"},
		"another runtime":                    {"", "magic", "v9.9.9", "unknown"},
		"a version that is none":             {"", "containerd", "main", "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := RuntimeNRIVersion(test.told, test.runtime, test.version).String(); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestEventsFollowTheRuntimesNRI(t *testing.T) {
	for name, test := range map[string]struct {
		nri                string
		updatePod, unasked bool
	}{
		"unknown": {"", false, false},
		"0.6.1":   {"0.6.1", false, false},
		"0.8.0":   {"0.8.0", false, false},
		"0.9.0":   {"0.9.0", false, false},
		"0.10.0":  {"0.10.0", true, false},
		"0.12.0":  {"0.12.0", true, false},
		"0.12.1":  {"0.12.1", true, true},
		"1.0.0":   {"1.0.0", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			nri := ParseVersion(test.nri)
			mask := events(nri)
			if got := mask.IsSet(api.Event_UPDATE_POD_SANDBOX); got != test.updatePod {
				t.Errorf("UpdatePodSandbox in the mask: %v, want %v", got, test.updatePod)
			}
			if got := allowsUnsolicited(nri); got != test.unasked {
				t.Errorf("unasked updates: %v, want %v", got, test.unasked)
			}
			if mask.IsSet(api.Event_VALIDATE_CONTAINER_ADJUSTMENT) {
				t.Error("the plugin subscribes to validation, which it does not handle")
			}
		})
	}
}

func TestRepliesUnified(t *testing.T) {
	for name, test := range map[string]struct {
		runtime, version string
		want             bool
	}{
		"containerd": {"containerd", "v1.7.28", true},
		"CRI-O 1.35": {"cri-o", "1.35.1", false},
		"CRI-O 1.36": {"cri-o", "1.36.0", true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := repliesUnified(test.runtime, test.version); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func FuzzParseVersion(f *testing.F) {
	for _, seed := range []string{"v0.12.3", "1.7.28-0ubuntu1", "v0.9.1-0.20250219030224-e597e7849f24", "(devel)", "999999.1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		version := ParseVersion(text)
		if version.Known() && ParseVersion(version.String()) != version {
			t.Errorf("%q is read as %s, which is read differently", text, version)
		}
	})
}
