package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
)

func newVersionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary and of the NRI protocol it was built with",
		Long: `Prints the version of this binary, of the NRI module in it and of Go. Which version of NRI the runtime has,
"nri-memory-manager status -o json" shows.`,
		Example: `  nri-memory-manager version
  nri-memory-manager version -o json`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{version, nriVersion(), runtime.Version()}
			return commandline.Failed(commandline.Write(cmd.OutOrStdout(), format, v, func(to io.Writer) error {
				_, err := fmt.Fprintf(to, "nri-memory-manager %s (NRI %s, %s)\n", v.Version, v.NRI, v.Go)
				return err
			}))
		},
	}
	commandline.AddOutput(cmd, &format, "text", "json", "yaml")
	return cmd
}

// versions is the contract of `version -o json`.
type versions struct {
	Version string `json:"version"`
	// NRI is the version of the NRI module, Go that of the compiler.
	NRI string `json:"nriVersion"`
	Go  string `json:"goVersion"`
}

func nriVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/containerd/nri" {
				return module.Version
			}
		}
	}
	return "unknown"
}
