package commandline

import (
	"fmt"
	"slices"
	"strings"
)

// Named is what an argument can name: a pod as NAMESPACE/NAME, name or UID, or one of its containers.
type Named struct{ Pod, Container string }

// Pod reads the only argument, which names a pod; "" without one. It is NAMESPACE/POD, POD with or without --namespace, or a UID, with or
// without "pod/" before it, as kubectl takes it: a pod of a namespace called pod is "pod/pod/POD", or named with --namespace.
func Pod(arguments []string, namespace string) (string, error) {
	if len(arguments) == 0 {
		return "", nil
	}
	parts := podParts(arguments[0], namespace)
	if len(parts) > 2 || slices.Contains(parts, "") {
		return "", fmt.Errorf("%q: want [NAMESPACE/]POD%s", arguments[0], within(namespace))
	}
	return strings.Join(parts, "/"), nil
}

// PodOrContainer reads an argument as Pod does, and one that names a container of a pod. Without a namespace "a/b" can be a pod in a
// namespace, or a container of a pod; with a container it is a pod.
func PodOrContainer(argument, namespace, container string) ([]Named, error) {
	if container != "" {
		pod, err := Pod([]string{argument}, namespace)
		return []Named{{pod, container}}, err
	}
	parts := podParts(argument, namespace)
	switch pod := strings.Join(parts[:min(len(parts), 2)], "/"); {
	case len(parts) > 3 || slices.Contains(parts, ""):
		return nil, fmt.Errorf("%q: want [NAMESPACE/]POD[/CONTAINER]%s", argument, within(namespace))
	case len(parts) == 3:
		return []Named{{pod, parts[2]}}, nil
	case len(parts) == 2 && namespace == "":
		return []Named{{pod, ""}, {parts[0], parts[1]}}, nil
	default:
		return []Named{{pod, ""}}, nil
	}
}

// podParts are the parts of an argument with its namespace, where that is known, and without kubectl's name of the resource.
func podParts(argument, namespace string) []string {
	parts := strings.Split(argument, "/")
	if len(parts) > 1 && slices.Contains([]string{"pod", "pods", "po"}, parts[0]) {
		parts = parts[1:]
	}
	if namespace != "" && (len(parts) == 1 || parts[0] != namespace) {
		parts = slices.Insert(parts, 0, namespace)
	}
	return parts
}

func within(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in the namespace " + namespace
}
