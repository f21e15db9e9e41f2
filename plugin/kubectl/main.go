// Command kubectl-memory_manager is the kubectl plugin "kubectl memory-manager": it asks the daemons in a cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/kubectl"
)

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends what waits for its input
	code := kubectl.Execute(ctx, version, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
