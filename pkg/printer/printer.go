// Package printer writes what a command prints in the format that its flag --output asks for.
package printer

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
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
	last := len(known) - 1
	cmd.Flags().StringVarP(format, "output", "o", known[0], strings.Join(known[:last], ", ")+" or "+known[last])
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// Check refuses an output format that is not one of those known.
func Check(format string, known ...string) error {
	if slices.Contains(known, format) {
		return nil
	}
	return fmt.Errorf("--output %q: want one of %s", format, strings.Join(known, ", "))
}
