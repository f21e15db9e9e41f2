package nriplugin

import (
	"context"

	"github.com/sirupsen/logrus"
)

// nriLog takes NRI's own messages. Its progress reports are for debugging: what an operator has to know is logged by
// Plugin.
type nriLog struct{ to logrus.FieldLogger }

func (l nriLog) Debugf(_ context.Context, format string, args ...any) { l.to.Debugf(format, args...) }
func (l nriLog) Infof(_ context.Context, format string, args ...any)  { l.to.Debugf(format, args...) }
func (l nriLog) Warnf(_ context.Context, format string, args ...any)  { l.to.Warnf(format, args...) }
func (l nriLog) Errorf(_ context.Context, format string, args ...any) { l.to.Errorf(format, args...) }
