package commandline

import (
	"encoding/json"
	"io"
	"reflect"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// AddOutput adds the flag --output with its completion; the first format is the default, and one that is not known is refused before
// the command runs.
func AddOutput(cmd *cobra.Command, format *string, known ...string) {
	cmd.Flags().StringVarP(format, "output", "o", known[0], spelling.List(known))
	Complete(cmd, "output", known...)
	cmd.PreRunE = func(*cobra.Command, []string) error { return Check("output", *format, known...) }
}

// Write writes a document as JSON or YAML, or in any other format by the function for people. A list without items is [], never null.
func Write(to io.Writer, format string, document any, people func(io.Writer) error) error {
	if list := reflect.ValueOf(document); list.Kind() == reflect.Slice && list.IsNil() {
		document = []struct{}{}
	}
	switch format {
	case "json":
		encoder := json.NewEncoder(to)
		encoder.SetIndent("", "  ")
		return encoder.Encode(document)
	case "yaml":
		text, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		_, err = to.Write(text)
		return err
	}
	return people(to)
}
