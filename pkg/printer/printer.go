// Package printer writes what a command prints in the format that its flag --output asks for.
package printer

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// Write writes a document as JSON or YAML, or in any other format by the function for people.
func Write(to io.Writer, format string, document any, people func(io.Writer) error) error {
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

// AddFlag adds the flag --output with its completion; the first format is the default.
func AddFlag(cmd *cobra.Command, format *string, known ...string) {
	cmd.Flags().StringVarP(format, "output", "o", known[0], spelling.List(known))
	commandline.Complete(cmd, "output", known...)
}

// Check refuses an output format that is not one of those known.
func Check(format string, known ...string) error {
	return commandline.Check("output", format, known...)
}
