package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary and of the NRI protocol it was built with",
		Long: `Prints the version of this binary, of the NRI module in it and of Go. Which version of NRI the runtime has,
"nri-memory-manager status -o json" shows.`,
		Example: `  nri-memory-manager version`,
		Args:    cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "nri-memory-manager %s (NRI %s, %s)\n", version, nriVersion(), runtime.Version())
		},
	}
}

// nriVersion returns the version of the NRI module in this binary.
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
