package main

import (
	"context"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

// watchdog has a systemd that asks for it (WatchdogSec) hear that the daemon moves, until ctx ends (sd_notify(3), sd_watchdog_enabled(3)).
func watchdog(ctx context.Context) {
	limit, _ := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	socket := os.Getenv("NOTIFY_SOCKET")
	if limit <= 0 || socket == "" {
		return
	}
	ticker := time.NewTicker(time.Duration(limit) * time.Microsecond / 4)
	defer ticker.Stop()
	for {
		if progress.Check() == nil {
			// One that is not received is followed by others.
			if conn, err := net.Dial("unixgram", socket); err == nil {
				_, _ = conn.Write([]byte("WATCHDOG=1"))
				conn.Close()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
