package cri

import (
	"context"
	"sync"

	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/sirupsen/logrus"
)

// quiet makes what NRI's runtime side logs visible at debug level only. NRI has one logger for the whole process.
var quiet = sync.OnceFunc(func() { nrilog.Set(debugLog{}) })

type debugLog struct{}

func (debugLog) Debugf(_ context.Context, format string, args ...any) { logrus.Tracef(format, args...) }
func (debugLog) Infof(_ context.Context, format string, args ...any)  { logrus.Debugf(format, args...) }
func (debugLog) Warnf(_ context.Context, format string, args ...any)  { logrus.Debugf(format, args...) }
func (debugLog) Errorf(_ context.Context, format string, args ...any) { logrus.Debugf(format, args...) }
