package commandline

import (
	"fmt"
	"testing"
)

func TestPod(t *testing.T) {
	for _, test := range []struct{ argument, namespace, pod, orContainer string }{
		{"web", "", "web", "[{web }]"},
		{"shop/web", "", "shop/web", "[{shop/web } {shop web}]"},
		{"web", "shop", "shop/web", "[{shop/web }]"},
		{"shop/web", "shop", "shop/web", "[{shop/web }]"},
		{"pod/web", "", "web", "[{web }]"},
		{"pods/web", "shop", "shop/web", "[{shop/web }]"},
		{"pod/shop/web", "", "shop/web", "[{shop/web } {shop web}]"},
		{"pod/pod/web", "", "pod/web", "[{pod/web } {pod web}]"},
		{"pod/web", "pod", "pod/web", "[{pod/web }]"},
		{"pod", "", "pod", "[{pod }]"},
		{"shop/web/app", "", `"shop/web/app": want [NAMESPACE/]POD`, "[{shop/web app}]"},
		{"web/app", "shop", `"web/app": want [NAMESPACE/]POD in the namespace shop`, "[{shop/web app}]"},
		{"pod/web/app", "shop", `"pod/web/app": want [NAMESPACE/]POD in the namespace shop`, "[{shop/web app}]"},
		{"", "", `"": want [NAMESPACE/]POD`, `"": want [NAMESPACE/]POD[/CONTAINER]`},
		{"", "shop", `"": want [NAMESPACE/]POD in the namespace shop`, `"": want [NAMESPACE/]POD[/CONTAINER] in the namespace shop`},
		{"pod/", "", `"pod/": want [NAMESPACE/]POD`, `"pod/": want [NAMESPACE/]POD[/CONTAINER]`},
		{"a/b/c/d", "", `"a/b/c/d": want [NAMESPACE/]POD`, `"a/b/c/d": want [NAMESPACE/]POD[/CONTAINER]`},
	} {
		pod, err := Pod([]string{test.argument}, test.namespace)
		if err != nil {
			pod = err.Error()
		}
		named, err := PodOrContainer(test.argument, test.namespace, "")
		orContainer := fmt.Sprint(named)
		if err != nil {
			orContainer = err.Error()
		}
		if pod != test.pod || orContainer != test.orContainer {
			t.Errorf("%q in namespace %q: %s, and %s; want %s, and %s", test.argument, test.namespace, pod, orContainer, test.pod, test.orContainer)
		}
		named, err = PodOrContainer(test.argument, test.namespace, "app")
		if of := fmt.Sprint(named); err == nil && of != "[{"+test.pod+" app}]" || err != nil && err.Error() != test.pod {
			t.Errorf("%q in namespace %q, container app: %s, %v", test.argument, test.namespace, of, err)
		}
	}
}
