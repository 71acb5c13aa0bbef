// Package kfake takes the place of franz-go's kfake, a fake of Kafka: its clusters are Strandline's.
//
// It has what the tests in kfake's folder kafka_tests use. Clusters with the same configuration are one: a test begins with
// none of the topics and groups of earlier ones. Tests therefore must not run in parallel.
package kfake

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type seed struct {
	partitions int32
	topic      string
}

type configuration struct {
	brokers int
	configs map[string]string
	seeds   []seed
}

// Opt is an option of a cluster.
type Opt func(*configuration)

// NumBrokers is how many brokers there are.
func NumBrokers(n int) Opt { return func(c *configuration) { c.brokers = n } }

// SeedTopics are topics that exist from the start.
func SeedTopics(partitions int32, topics ...string) Opt {
	return func(c *configuration) {
		for _, topic := range topics {
			c.seeds = append(c.seeds, seed{partitions, topic})
		}
	}
}

// BrokerConfigs are settings of the brokers.
func BrokerConfigs(configs map[string]string) Opt {
	return func(c *configuration) {
		for key, value := range configs {
			c.configs[key] = value
		}
	}
}

// Cluster is a cluster of Strandline's.
type Cluster struct {
	addresses []string
	admin     *kadm.Client
	stop      func()
}

var (
	started      = map[string]*Cluster{}
	startedMutex sync.Mutex
)

// NewCluster returns a cluster without topics, but for those of the options, and without groups.
func NewCluster(options ...Opt) (*Cluster, error) {
	c := configuration{brokers: 3, configs: map[string]string{}}
	for _, option := range options {
		option(&c)
	}
	arguments := []string{fmt.Sprint(c.brokers)}
	for key, value := range c.configs {
		arguments = append(arguments, key+"="+value)
	}
	sort.Strings(arguments[1:])
	cluster, err := startOnce(arguments)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := cluster.clear(ctx); err != nil {
		return nil, fmt.Errorf("clear the cluster: %w", err)
	}
	for _, seed := range c.seeds {
		if _, err := cluster.admin.CreateTopic(ctx, seed.partitions, -1, nil, seed.topic); err != nil {
			return nil, fmt.Errorf("create %s: %w", seed.topic, err)
		}
	}
	return cluster, nil
}

func startOnce(arguments []string) (*Cluster, error) {
	startedMutex.Lock()
	defer startedMutex.Unlock()
	name := strings.Join(arguments, " ")
	if cluster := started[name]; cluster != nil {
		return cluster, nil
	}
	cluster, err := start(arguments)
	if err == nil {
		started[name] = cluster
	}
	return cluster, err
}

// start runs STRANDLINE_CLUSTER, a command that prints the addresses of a cluster, and stops it when its input ends.
func start(arguments []string) (*Cluster, error) {
	command := append(strings.Split(os.Getenv("STRANDLINE_CLUSTER"), "\n"), arguments...)
	process := exec.Command(command[0], command[1:]...)
	process.Stderr = os.Stderr
	input, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the cluster did not start: %w", err)
	}
	addresses := strings.Split(strings.TrimSpace(line), ",")
	client, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return nil, err
	}
	stop := func() {
		_ = input.Close()
		_ = process.Wait()
	}
	return &Cluster{addresses, kadm.NewClient(client), stop}, nil
}

// StopAll stops all clusters. After a panic the operating system closes their inputs, too.
func StopAll() {
	for _, cluster := range started {
		cluster.stop()
	}
}

func (c *Cluster) clear(ctx context.Context) error {
	groups, err := c.admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	for _, group := range groups.Groups() {
		// One with static members is not empty, because they stay. No other test has a group of its name.
		if _, err := c.admin.DeleteGroup(ctx, group); err != nil && !errors.Is(err, kerr.NonEmptyGroup) {
			return err
		}
	}
	topics, err := c.admin.ListTopics(ctx)
	if err != nil || len(topics) == 0 {
		return err
	}
	_, err = c.admin.DeleteTopics(ctx, topics.Names()...)
	return err
}

// Close leaves the cluster for the next test with this configuration. StopAll stops it.
func (*Cluster) Close() {}

// ListenAddrs are the addresses of the brokers.
func (c *Cluster) ListenAddrs() []string { return c.addresses }

// GroupInfo is what is known about a group.
type GroupInfo struct {
	Group   string
	State   string
	Epoch   int32
	Members []GroupMember
	Commits map[string]map[int32]GroupCommit
}

// GroupCommit is a committed offset.
type GroupCommit struct {
	Offset      int64
	LeaderEpoch int32
	Metadata    string
	At          time.Time
}

// GroupMember is a member of a group.
type GroupMember struct {
	MemberID         string
	InstanceID       *string
	ClientID         string
	ClientHost       string
	SubscribedTopics []string
	Assignment       map[string][]int32
}

// NumAssigned returns how many partitions the member has.
func (m *GroupMember) NumAssigned() int {
	n := 0
	for _, partitions := range m.Assignment {
		n += len(partitions)
	}
	return n
}

// NumAssigned returns how many partitions all members have.
func (g *GroupInfo) NumAssigned() int {
	n := 0
	for i := range g.Members {
		n += g.Members[i].NumAssigned()
	}
	return n
}

// GroupInfo returns what is known about a group; nil if there is none.
func (c *Cluster) GroupInfo(group string) *GroupInfo {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	listed, err := c.admin.ListGroups(ctx)
	if err != nil {
		return nil
	}
	found, ok := listed[group]
	if !ok {
		return nil
	}
	info := &GroupInfo{Group: group, State: found.State, Commits: c.commits(ctx, group)}
	if found.GroupType == "consumer" {
		c.describeConsumer(ctx, info)
	} else {
		c.describeClassic(ctx, info)
	}
	sort.Slice(info.Members, func(i, j int) bool { return info.Members[i].MemberID < info.Members[j].MemberID })
	return info
}

func (c *Cluster) commits(ctx context.Context, group string) map[string]map[int32]GroupCommit {
	commits := map[string]map[int32]GroupCommit{}
	offsets, err := c.admin.FetchOffsets(ctx, group)
	if err != nil {
		return commits
	}
	offsets.Each(func(o kadm.OffsetResponse) {
		if commits[o.Topic] == nil {
			commits[o.Topic] = map[int32]GroupCommit{}
		}
		commits[o.Topic][o.Partition] = GroupCommit{Offset: o.At, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata}
	})
	return commits
}

func (c *Cluster) describeClassic(ctx context.Context, info *GroupInfo) {
	described, err := c.admin.DescribeGroups(ctx, info.Group)
	if err != nil {
		return
	}
	group := described[info.Group]
	info.State = group.State
	for _, m := range group.Members {
		member := GroupMember{
			MemberID: m.MemberID, InstanceID: m.InstanceID, ClientID: m.ClientID, ClientHost: m.ClientHost,
			Assignment: map[string][]int32{},
		}
		if joined, ok := m.Join.AsConsumer(); ok {
			member.SubscribedTopics = joined.Topics
		}
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, topic := range assigned.Topics {
				member.Assignment[topic.Topic] = topic.Partitions
			}
		}
		info.Members = append(info.Members, member)
	}
}

func (c *Cluster) describeConsumer(ctx context.Context, info *GroupInfo) {
	described, err := c.admin.DescribeConsumerGroups(ctx, info.Group)
	if err != nil {
		return
	}
	group := described[info.Group]
	info.State, info.Epoch = group.State, group.Epoch
	for _, m := range group.Members {
		member := GroupMember{
			MemberID: m.MemberID, InstanceID: m.InstanceID, ClientID: m.ClientID, ClientHost: m.ClientHost,
			SubscribedTopics: m.SubscribedTopics, Assignment: map[string][]int32{},
		}
		for topic, partitions := range m.Assignment {
			for partition := range partitions {
				member.Assignment[topic] = append(member.Assignment[topic], partition)
			}
		}
		info.Members = append(info.Members, member)
	}
}

// WaitGroupStable waits until a group is Stable with so many members.
func (c *Cluster) WaitGroupStable(ctx context.Context, group string, members int) (*GroupInfo, error) {
	for {
		info := c.GroupInfo(group)
		if info != nil && info.State == "Stable" && len(info.Members) == members {
			return info, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %+v", ctx.Err(), info)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Fault is a fault of the fake, which a real broker cannot have on demand.
type Fault struct {
	Keys  []kmsg.Key
	Group string
	Err   *kerr.Error
	Count int
	When  func(kmsg.Request) bool
}

// Fault cannot be.
func (*Cluster) Fault(...Fault) { panic("a real cluster has no faults on demand") }

// ControlKey cannot be.
func (*Cluster) ControlKey(int16, func(kmsg.Request) (kmsg.Response, error, bool)) {
	panic("nobody can step in between the requests to a real cluster")
}
