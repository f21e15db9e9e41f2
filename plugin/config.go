package main

import "github.com/spf13/cobra"

// newConfigCommand returns the command "config".
func newConfigCommand() *cobra.Command {
	return &cobra.Command{Use: "config", Short: "Check or show the configuration"}
}
