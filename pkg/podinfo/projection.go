package podinfo

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// projection names the fields of a protobuf message that are kept, by their numbers, and what is kept inside of each; nil
// keeps it whole. A pod shrinks from tens of kilobytes to some hundred bytes before it is decoded, which spares the garbage
// collector most of what a busy node sends.
type projection map[protowire.Number]projection

// The fields that FromPod and client-go's reflector read; the numbers are those of k8s.io/api/core/v1/generated.proto and
// of its meta/v1, and are part of the Kubernetes API.
var (
	resourceFields  = projection{1: nil /* limits */, 2: nil /* requests */}
	containerFields = projection{1: nil /* name */, 8: resourceFields, 24: nil /* restartPolicy */}
	statusFields    = projection{1: nil /* name */, 10: nil /* allocatedResources */, 11: resourceFields}
	podFields       = projection{
		1: { // metadata
			1: nil /* name */, 3: nil /* namespace */, 5: nil /* uid */, 6: nil /* resourceVersion */, 12: nil, /* annotations */
		},
		2: { // spec
			2: containerFields, 20: containerFields /* initContainers */, 32: nil /* overhead */, 40: resourceFields,
			24: nil /* priorityClassName */, 34: {1: {1: nil}}, // ephemeralContainers: name
		},
		3: { // status
			2: {1: nil /* type */, 2: nil /* status */, 5: nil /* reason */},                              // conditions
			8: statusFields, 10: statusFields /* initContainerStatuses */, 9: nil /* qosClass */, 14: nil, /* resize */
			19: nil /* allocatedResources */, 20: resourceFields,
			21: {1: nil /* resourceClaimName */, 2: nil /* containers */, 4: nil /* mapping */, 5: nil /* overhead */}, // nodeAllocatableResourceClaimStatuses
		},
	}
	podListFields = projection{1: nil /* metadata */, 2: podFields}
)

// of returns a message with only the fields that are kept.
func (p projection) of(message []byte) ([]byte, error) {
	var kept []byte
	for len(message) > 0 {
		number, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil, protowire.ParseError(tag)
		}
		value := protowire.ConsumeFieldValue(number, kind, message[tag:])
		if value < 0 {
			return nil, protowire.ParseError(value)
		}
		inside, keep := p[number]
		switch {
		case !keep:
		case inside == nil || kind != protowire.BytesType:
			kept = append(kept, message[:tag+value]...)
		default:
			whole, _ := protowire.ConsumeBytes(message[tag:])
			part, err := inside.of(whole)
			if err != nil {
				return nil, fmt.Errorf("field %d: %w", number, err)
			}
			kept = protowire.AppendBytes(append(kept, message[:tag]...), part)
		}
		message = message[tag+value:]
	}
	return kept, nil
}

// projected wraps client-go's serializers. Its protobuf serializer decodes only the fields that are kept of a pod.
type projected struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes returns the serializers.
func (p projected) SupportedMediaTypes() []runtime.SerializerInfo {
	all := slices.Clone(p.NegotiatedSerializer.SupportedMediaTypes())
	for i := range all {
		if all[i].MediaType == runtime.ContentTypeProtobuf {
			all[i].Serializer = projectedSerializer{all[i].Serializer}
		}
	}
	return all
}

type projectedSerializer struct{ runtime.Serializer }

// envelope is how the Kubernetes API marks protobuf; a runtime.Unknown follows it
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding).
var envelope = []byte("k8s\x00")

// Decode decodes what is kept of a pod or of a list of pods, and anything else as it is.
func (s projectedSerializer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if unknown, ok := bytes.CutPrefix(data, envelope); ok {
		raw := map[string]projection{"Pod": podFields, "PodList": podListFields}[kindOf(unknown)]
		small, err := projection{1: nil /* typeMeta */, 2: raw, 3: nil /* contentEncoding */, 4: nil /* contentType */}.of(unknown)
		if err == nil { // else the caller, who knows the message, has the better error
			data = append(bytes.Clone(envelope), small...)
		}
	}
	return s.Serializer.Decode(data, defaults, into)
}

// kindOf reads the kind in a runtime.Unknown's type, without its content.
func kindOf(unknown []byte) string {
	var head runtime.Unknown
	if meta, err := (projection{1: nil /* typeMeta */}).of(unknown); err != nil || head.Unmarshal(meta) != nil {
		return ""
	}
	return head.Kind
}
