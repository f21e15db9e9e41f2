package guard

import (
	"math/rand/v2"
	"testing"
	"time"
)

const mib = 1 << 20

var defaults = Settings{Stall: 500 * time.Millisecond, Window: 2 * time.Second, Step: 0.25, RestoreAfter: 5 * time.Minute}

// String names the verb in messages of tests.
func (v Verb) String() string {
	return [...]string{"nothing", "reclaim", "raise", "restore"}[v]
}

// container is a simulated one on kernel 6.12 without swap, as runs in a virtual machine showed it: at memory.high,
// page cache is reclaimed at no cost, and anonymous memory stalls its process for 93 % of the time while it gains
// about 0.1 MiB a second.
type container struct {
	bounds    Bounds
	want      uint64 // anonymous bytes that it will allocate
	perSecond uint64 // bytes that it allocates a second when nothing holds it
	readsFile bool   // it fills its memory with page cache when it has all that it wants

	swap             bool // what is beyond memory.high goes there, slowly
	anon, file, high uint64
	swapped          uint64
	reclaimed        uint64
	events           uint64
	stall            time.Duration
	killed           bool
	nodeReclaims     uint64
	nodeAvailable    uint64
	nodeShort        bool
}

const tick = 10 * time.Millisecond

func (c *container) step() {
	bytes := c.perSecond * uint64(tick) / uint64(time.Second)
	if c.nodeShort {
		c.nodeReclaims++
		c.stall += tick / 2
	}
	if c.readsFile {
		c.file += bytes
		if used := c.anon + c.file; used > c.high {
			c.events++
			c.reclaimed += min(c.file, used-c.high)
			c.file -= min(c.file, used-c.high)
			c.stall += tick / 2
		}
		return
	}
	if c.anon+c.swapped >= c.want || c.killed {
		return
	}
	if used := c.anon + c.file + bytes; used > c.high {
		c.events++
		if over := used - c.high; c.file >= over {
			c.file -= over
			c.reclaimed += over
		} else if c.swap {
			c.stall += tick * 9 / 10
			if c.stall%time.Second < 200*time.Millisecond { // it sleeps for the rest
				c.swapped += bytes
				c.reclaimed += bytes
			}
			return
		} else {
			c.file = 0
			c.stall += tick * 93 / 100
			bytes = 1024
		}
	}
	c.anon = min(c.anon+bytes, c.want)
	if c.bounds.Limit > 0 && c.anon+c.file > c.bounds.Limit {
		if over := c.anon + c.file - c.bounds.Limit; c.file >= over {
			c.file -= over
		} else {
			c.killed = true
		}
	}
}

func (c *container) sample(at time.Time) Sample {
	swap := uint64(0)
	if c.swap {
		swap = 1 << 40
	}
	return Sample{At: at, Current: c.anon + c.file, File: c.file, Swap: swap, Reclaimed: c.reclaimed, HighEvents: c.events, FullStall: c.stall,
		NodeReclaims: c.nodeReclaims, NodeAvailable: c.nodeAvailable}
}

// run plays kernel and Guard for a while and returns the actions taken.
func (c *container) run(b *Brake, settings Settings, began time.Time, long time.Duration, guarded bool) []Action {
	var actions []Action
	var look, fired time.Duration = -1, -settings.Window
	window, enough := make([]time.Duration, settings.Window/tick), settings.Stall
	if b != nil {
		enough = b.trigger()
	}
	for now := time.Duration(0); now < long; now += tick {
		c.step()
		slot := now / tick % time.Duration(len(window))
		triggered := c.stall-window[slot] >= enough && now-fired >= settings.Window
		window[slot] = c.stall
		if !guarded || !triggered && (look < 0 || now < look) {
			continue
		}
		if triggered {
			fired = now
		}
		action := b.Next(c.sample(began.Add(now)))
		look = -1
		if action.LookIn > 0 {
			look = now + action.LookIn
		}
		switch action.Verb {
		case Reclaim:
			c.file -= min(c.file, action.Bytes)
		case Raise, Restore:
			c.high = action.Bytes
		}
		if action.Verb != Nothing {
			actions = append(actions, action)
		}
	}
	return actions
}

func verbs(actions []Action) map[Verb]int {
	count := map[Verb]int{}
	for _, action := range actions {
		count[action.Verb]++
	}
	return count
}

func newContainer(computed, limit, want uint64) (*container, *Brake) {
	bounds := Bounds{Computed: computed * mib, Limit: limit * mib}
	c := &container{bounds: bounds, want: want * mib, perSecond: 256 * mib, high: computed * mib, nodeAvailable: 64 << 30}
	return c, NewBrake(defaults, bounds, bounds.Computed)
}

func TestGrowingContainerIsNeverStoppedForLong(t *testing.T) {
	for name, mebibytes := range map[string][3]uint64{ // memory.high, limit, what the process wants
		"56 MiB between 32 and 64":      {32, 64, 56},
		"a gap of 16 MiB":               {240, 256, 255},
		"a gap of 256 MiB":              {256, 512, 510},
		"a gap of 1 GiB":                {1024, 2048, 2040},
		"no limit, the node gives more": {128, 0, 1500},
	} {
		t.Run(name, func(t *testing.T) {
			c, b := newContainer(mebibytes[0], mebibytes[1], mebibytes[2])
			c.run(b, defaults, time.Now(), time.Minute, true)
			if c.anon < c.want || c.killed || c.stall > 5*time.Second {
				t.Errorf("after a minute: %d of %d MiB, killed %t, stalled %v; want all of it, alive, at most 5 s of stall",
					c.anon/mib, c.want/mib, c.killed, c.stall)
			}
			alone, _ := newContainer(mebibytes[0], mebibytes[1], mebibytes[2])
			alone.run(nil, defaults, time.Now(), time.Minute, false)
			if alone.anon >= alone.want {
				t.Errorf("without the guard the container came through: the simulation shows nothing")
			}
		})
	}
}

// inRoom is a container whose memory.high lies below its limit for page cache alone.
func inRoom(limit, want uint64) (*container, *Brake) {
	c, _ := newContainer(limit*9/10, limit, want)
	c.bounds.CacheRoom = true
	return c, NewBrake(defaults, c.bounds, c.bounds.Computed)
}

func TestAHeapHasTheRoomForPageCacheAtOnce(t *testing.T) {
	for name, mebibytes := range map[string][2]uint64{"64 MiB": {64, 63}, "1 GiB": {1024, 1020}, "64 GiB": {64 << 10, 64<<10 - 64}} {
		t.Run(name, func(t *testing.T) {
			c, b := inRoom(mebibytes[0], mebibytes[1])
			c.perSecond = mebibytes[0] * mib
			actions := c.run(b, defaults, time.Now(), 10*time.Second, true)
			if c.anon < c.want || c.killed || c.stall > defaults.Window/4 {
				t.Errorf("%d of %d MiB, killed %t, stalled %v; want all of it with little stall", c.anon/mib, c.want/mib, c.killed, c.stall)
			}
			if len(actions) != 1 || actions[0].Verb != Raise || actions[0].Bytes != Unlimited {
				t.Errorf("actions %+v, want one raise to the limit", actions)
			}
		})
	}
}

// A container that writes more than its disk takes stalls for as long as it does: at its limit it would be killed.
func TestPageCacheWaitsInItsRoom(t *testing.T) {
	b := NewBrake(defaults, Bounds{Computed: 90 * mib, Limit: 100 * mib, CacheRoom: true}, 90*mib)
	s := Sample{Current: 91 * mib, NodeAvailable: 64 << 30}
	began := time.Unix(1000, 0)
	for passed := time.Duration(0); passed < time.Minute; passed += 100 * time.Millisecond {
		s.At, s.FullStall, s.HighEvents = began.Add(passed), passed, s.HighEvents+1
		s.File = 91*mib - 85*mib // what else it has is just below the slack of 5 %
		if action := b.Next(s); action.Verb != Nothing {
			t.Fatalf("after %v: %+v, want nothing", passed, action)
		}
	}
	s.File = 91*mib - 86*mib
	for range 10 {
		s.At, s.FullStall, s.HighEvents = s.At.Add(100*time.Millisecond), s.FullStall+100*time.Millisecond, s.HighEvents+1
		if action := b.Next(s); action.Verb == Raise && action.Bytes == Unlimited {
			return
		}
	}
	t.Error("a heap that fills what is below the room is not raised")
}

func TestTheRoomComesBackInOneStep(t *testing.T) {
	bounds := Bounds{Computed: 90 * mib, Limit: 100 * mib, CacheRoom: true}
	b := NewBrake(defaults, bounds, Unlimited)
	s := Sample{At: time.Unix(1000, 0), Current: 70 * mib, NodeAvailable: 64 << 30}
	var restored []uint64
	for range 100 {
		action := b.Next(s)
		if action.Verb == Restore {
			restored = append(restored, action.Bytes)
		}
		s.At = s.At.Add(max(action.LookIn, time.Second))
	}
	if len(restored) != 1 || restored[0] != 90*mib {
		t.Errorf("memory.high goes back to %v, want once to %d", restored, 90*mib)
	}
}

func TestLeakIsKilledAtItsLimitSoon(t *testing.T) {
	c, b := newContainer(32, 64, 90)
	c.run(b, defaults, time.Now(), 10*time.Second, true)
	if !c.killed {
		t.Errorf("after 10 s the container stands at %d MiB of 64, memory.high %d", c.anon/mib, b.High())
	}
}

func TestPageCacheReaderIsNotRaised(t *testing.T) {
	c, b := newContainer(32, 64, 16)
	c.anon, c.readsFile = 16*mib, true
	if actions := c.run(b, defaults, time.Now(), time.Minute, true); len(actions) > 0 || c.events == 0 {
		t.Errorf("actions %v with %d high events, want none with some", actions, c.events)
	}
}

// TestAHeapAboveMemoryHighGetsRoomThoughItReads: its page cache comes and goes, which is no progress, because each allocation sleeps for the heap.
func TestAHeapAboveMemoryHighGetsRoomThoughItReads(t *testing.T) {
	c, b := newContainer(275, 400, 281)
	c.anon, c.readsFile = 281*mib, true
	actions := c.run(b, defaults, time.Now(), time.Minute, true)
	if count := verbs(actions); count[Raise] != 1 || b.High() < c.anon {
		t.Errorf("%v, memory.high %d MiB; want one raise, above the heap of 281 MiB", actions, b.High()/mib)
	}
}

func TestSwappingContainerIsNotRaised(t *testing.T) {
	c, b := newContainer(32, 0, 1024)
	c.swap = true
	if actions := c.run(b, defaults, time.Now(), time.Minute, true); len(actions) > 0 || c.swapped == 0 || c.stall < time.Second {
		t.Errorf("actions %v with %v of stall, want none: it gets on", actions, c.stall)
	}
}

func TestNodeThatIsShortIsNotMadeShorter(t *testing.T) {
	c, b := newContainer(32, 64, 56)
	c.nodeAvailable = 0
	if actions := c.run(b, defaults, time.Now(), time.Minute, true); len(actions) > 0 {
		t.Errorf("actions %v, want none: the node has nothing to give", actions)
	}
	c, b = newContainer(32, 64, 56)
	c.nodeShort, c.nodeAvailable = true, 4*mib
	if actions := c.run(b, defaults, time.Now(), time.Minute, true); len(actions) > 0 {
		t.Errorf("actions %v, want none: the whole node reclaims and has little to give", actions)
	}
	c, b = newContainer(32, 64, 56)
	c.nodeShort = true
	if c.run(b, defaults, time.Now(), time.Minute, true); c.anon < c.want {
		t.Error("the container stands although the node has plenty: allocations reclaim for other reasons too")
	}
}

// Threads that grow at once stand far above memory.high, each asleep for up to 2 s: no event is counted meanwhile.
func TestRaiseReachesBeyondWhatIsUsedAlready(t *testing.T) {
	_, b := newContainer(32, 0, 0)
	began := time.Now()
	b.Next(Sample{At: began, Current: 48 * mib, NodeAvailable: 1 << 30})
	got := b.Next(Sample{At: began.Add(300 * time.Millisecond), Current: 48 * mib, FullStall: 300 * time.Millisecond, NodeAvailable: 1 << 30})
	if got.Verb != Raise || got.Bytes <= 48*mib {
		t.Errorf("%v to %d, want a raise beyond the 48 MiB in use", got.Verb, got.Bytes)
	}
}

func TestPageCacheIsReclaimedBeforeTheFirstRaise(t *testing.T) {
	_, b := newContainer(32, 64, 56)
	began := time.Now()
	b.Next(Sample{At: began, Current: 32 * mib, File: 8 * mib, NodeAvailable: 1 << 30})
	stalled := Sample{At: began.Add(400 * time.Millisecond), Current: 32 * mib, File: 8 * mib, HighEvents: 9,
		FullStall: 400 * time.Millisecond, NodeAvailable: 1 << 30}
	if got := b.Next(stalled); got.Verb != Reclaim || got.Bytes != 8*mib {
		t.Fatalf("first answer: %v of %d bytes, want reclaim of the 8 MiB of cache", got.Verb, got.Bytes)
	}
	stalled.At = began.Add(500 * time.Millisecond)
	if got := b.Next(stalled); got.Verb != Nothing || !b.Open() {
		t.Fatalf("the call has returned: %v, want a new reading", got.Verb)
	}
	stalled.At, stalled.HighEvents, stalled.FullStall = began.Add(800*time.Millisecond), 18, 800*time.Millisecond
	if got := b.Next(stalled); got.Verb != Raise || got.Bytes != 40*mib {
		t.Fatalf("it freed nothing: %v to %d bytes, want raise to 40 MiB", got.Verb, got.Bytes)
	}
}

func TestRaisedValueGoesBackInStepsAndDoesNotSaw(t *testing.T) {
	c, b := newContainer(32, 64, 56)
	began := time.Now()
	c.run(b, defaults, began, time.Minute, true)
	if !b.Raised() {
		t.Fatal("nothing was raised")
	}
	// It keeps what it has: nothing can be lowered below it, for ten hours.
	actions := c.run(b, defaults, began.Add(time.Minute), 10*time.Hour, true)
	if count := verbs(actions); count[Raise] > 2 || count[Restore] > 3 {
		t.Errorf("a container that keeps its memory: %v, want hardly any action", count)
	}
	// It gives most of it back: memory.high returns to its computed value, without a stall.
	c.anon, c.want = 16*mib, 16*mib
	stalled := c.stall
	c.run(b, defaults, began.Add(11*time.Hour), 3*time.Hour, true)
	if b.Raised() || c.high != 32*mib || c.stall != stalled {
		t.Errorf("three hours after it shrank: memory.high %d, stalled %v more, want the computed 32 MiB without a stall",
			c.high, c.stall-stalled)
	}
	// A container that comes and goes is raised ever more rarely.
	c, b = newContainer(32, 64, 0)
	raises := 0
	for hour := range 24 {
		c.want = 56 * mib
		actions := c.run(b, defaults, began.Add(time.Duration(hour)*time.Hour), 30*time.Minute, true)
		c.anon, c.want = 8*mib, 8*mib
		actions = append(actions, c.run(b, defaults, began.Add(time.Duration(hour)*time.Hour+30*time.Minute), 30*time.Minute, true)...)
		raises += verbs(actions)[Raise]
	}
	if raises > 24*3 {
		t.Errorf("%d raises in 24 hourly episodes", raises)
	}
}

func TestReboundKeepsARaiseWhereThereIsRoom(t *testing.T) {
	type want struct {
		high   uint64
		raised bool
	}
	for name, test := range map[string]struct {
		high   uint64
		bounds Bounds
		want   want
	}{
		"raised, same bounds":           {48 * mib, Bounds{Computed: 32 * mib, Limit: 64 * mib}, want{48 * mib, true}},
		"raised, limit above":           {48 * mib, Bounds{Computed: 32 * mib, Limit: 128 * mib}, want{48 * mib, true}},
		"raised beyond the new limit":   {48 * mib, Bounds{Computed: 20 * mib, Limit: 40 * mib}, want{Unlimited, true}},
		"computed value overtakes":      {48 * mib, Bounds{Computed: 90 * mib, Limit: 100 * mib}, want{90 * mib, false}},
		"never raised follows computed": {0, Bounds{Computed: 16 * mib, Limit: 64 * mib}, want{16 * mib, false}},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBrake(defaults, Bounds{Computed: 32 * mib, Limit: 64 * mib}, test.high)
			if got := b.Rebound(test.bounds); got != test.want.high || b.Raised() != test.want.raised {
				t.Errorf("memory.high %d, raised %t; want %d, %t", got, b.Raised(), test.want.high, test.want.raised)
			}
		})
	}
}

// Whatever the readings, memory.high never falls below the computed value, and never stands between the limit and "max".
func TestAnyReadingsKeepTheBounds(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		bounds := Bounds{Computed: random.Uint64N(1 << 34)}
		if random.IntN(3) > 0 {
			bounds.Limit = bounds.Computed + 1 + random.Uint64N(1<<34)
		}
		b := NewBrake(defaults, bounds, bounds.Computed)
		s := Sample{At: time.Now()}
		for range 100 {
			s.At = s.At.Add(time.Duration(random.Int64N(int64(time.Minute))))
			s.Current, s.File = random.Uint64N(1<<35), random.Uint64N(1<<35)
			s.HighEvents += random.Uint64N(3)
			s.FullStall += time.Duration(random.Int64N(int64(time.Second)))
			s.NodeAvailable = random.Uint64N(1 << 36)
			s.NodeReclaims += random.Uint64N(2)
			before := b.High()
			action := b.Next(s)
			switch high := b.High(); {
			case high < bounds.Computed:
				t.Fatalf("memory.high %d below the computed %d", high, bounds.Computed)
			case bounds.Limit > 0 && high >= bounds.Limit && high != Unlimited:
				t.Fatalf("memory.high %d at or beyond the limit %d", high, bounds.Limit)
			case action.Verb == Raise && (high <= before || high != action.Bytes),
				action.Verb == Restore && (high >= before || high != action.Bytes),
				action.Verb != Raise && action.Verb != Restore && high != before:
				t.Fatalf("%v to %d took memory.high from %d to %d", action.Verb, action.Bytes, before, high)
			}
		}
	}
}

// A container that stays stopped on a node with room is raised at every look, each time by at least as much as before, until its limit
// decides: also where the limit is a number that means none.
func FuzzRaisesGrowUntilTheLimit(f *testing.F) {
	for _, limit := range []uint64{0, 1, 64 * mib, 1 << 40, 1 << 61, 1 << 62, 1<<63 - 4096, 1<<63 - 1} {
		for _, step := range []uint16{0, 1, 0x4000, 0xffff} {
			f.Add(uint64(64*mib), limit, step, uint64(8<<30))
			f.Add(limit/2, limit, step, uint64(smallestStep))
			f.Add(limit/2, limit, step, uint64(1<<63-1))
		}
	}
	f.Fuzz(func(t *testing.T, computed, limit uint64, step uint16, available uint64) {
		settings := defaults
		settings.Step = (float64(step) + 1) / (1 << 16)
		computed, limit, available = computed&(1<<63-1), limit&(1<<63-1), max(available&(1<<63-1), smallestStep) // the kernel counts to 2^63
		b := NewBrake(settings, Bounds{Computed: computed, Limit: limit}, computed)
		s := Sample{At: time.Unix(1000, 0), Current: computed, NodeAvailable: available}
		b.Next(s)
		for raise, least := 1, uint64(smallestStep); raise <= 40 && b.High() != Unlimited; raise++ {
			before := b.High()
			s.At, s.Current = s.At.Add(settings.Stall), before
			s.FullStall, s.HighEvents = s.FullStall+settings.Stall, s.HighEvents+1
			action := b.Next(s)
			if action.Verb != Raise || action.Bytes <= before || action.Bytes != Unlimited && action.Bytes-before < least {
				t.Fatalf("raise %d: %v to %d from %d, want one by at least %d bytes", raise, action.Verb, action.Bytes, before, least)
			}
			least = action.Bytes - before
		}
	})
}

// On a node with nothing left, a container is raised to its request at once, and no further.
func TestARequestNeedsNoRoomOnTheNode(t *testing.T) {
	for name, test := range map[string]struct {
		bounds Bounds
		want   uint64
	}{
		"room for page cache below a request that is the limit": {Bounds{Computed: 58 * mib, Request: 64 * mib, Limit: 64 * mib, CacheRoom: true}, Unlimited},
		"memory.high below a request":                           {Bounds{Computed: 58 * mib, Request: 64 * mib, Limit: 128 * mib}, 64 * mib},
		"memory.high above the request":                         {Bounds{Computed: 58 * mib, Request: 32 * mib, Limit: 64 * mib}, 58 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBrake(defaults, test.bounds, 0)
			s := Sample{At: time.Unix(0, 0), Current: 58 * mib}
			for range 600 {
				s.At, s.FullStall, s.HighEvents = s.At.Add(time.Second), s.FullStall+time.Second, s.HighEvents+10
				s.Current = max(s.Current, min(b.High(), 64*mib)) // it takes what it is given
				b.Next(s)
			}
			if b.High() != test.want {
				t.Errorf("after ten minutes of full stall memory.high is %d, want %d", b.High(), test.want)
			}
		})
	}
}
