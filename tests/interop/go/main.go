// The Go client of RocketMQ (v2), controlled over stdin and stdout by other_clients.py.
//
// The request is one line of JSON, the results are further lines:
//
//	{"do": "produce", "namesrv": "127.0.0.1:9876", "topic": "T", "how": "sync",
//	 "messages": [{"body": "aGVsbG8=", "tags": "a", "keys": ["k"], "properties": {"u": "1"}}]}
//	{"do": "consume", "namesrv": "127.0.0.1:9876", "topic": "T", "group": "g",
//	 "expression": "*", "count": 10, "orderly": false, "broadcasting": false}
//
// Each result is a line; the last line is {"end": true} or {"error": "..."}. Consuming ends after
// "count" messages. ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY sign the requests;
// if it is built with the tag tls, ROCKETMQ_TLS=true encrypts them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type message struct {
	Body       []byte            `json:"body"`
	Tags       string            `json:"tags,omitempty"`
	Keys       []string          `json:"keys,omitempty"`
	Properties map[string]string `json:"properties,omitempty"`
}

type request struct {
	Do           string    `json:"do"`
	Namesrv      string    `json:"namesrv"`
	Topic        string    `json:"topic"`
	Group        string    `json:"group"`
	How          string    `json:"how"`
	Messages     []message `json:"messages"`
	Expression   string    `json:"expression"`
	Count        int       `json:"count"`
	Orderly      bool      `json:"orderly"`
	Broadcasting bool      `json:"broadcasting"`
}

var (
	lock sync.Mutex
	out  = json.NewEncoder(os.Stdout)

	credentials = primitive.Credentials{
		AccessKey: os.Getenv("ROCKETMQ_ACCESS_KEY"),
		SecretKey: os.Getenv("ROCKETMQ_SECRET_KEY"),
		// Empty is none.
		SecurityToken: os.Getenv("ROCKETMQ_SECURITY_TOKEN"),
	}
)

func main() {
	rlog.SetLogLevel("error")
	line, err := bufio.NewReaderSize(os.Stdin, 1<<20).ReadBytes('\n')
	if err == nil {
		var wanted request
		if err = json.Unmarshal(line, &wanted); err == nil {
			err = run(wanted)
		}
	}
	if err != nil {
		tell(map[string]any{"error": err.Error()})
		os.Exit(1)
	}
	tell(map[string]any{"end": true})
}

func run(wanted request) error {
	switch wanted.Do {
	case "produce":
		return produce(wanted)
	case "consume":
		return consume(wanted)
	}
	return fmt.Errorf("no command %q", wanted.Do)
}

func tell(value any) {
	lock.Lock()
	defer lock.Unlock()
	if err := out.Encode(value); err != nil {
		panic(err)
	}
}

func produce(wanted request) error {
	sender, err := rocketmq.NewProducer(append(producerTls(),
		producer.WithNameServer(primitive.NamesrvAddr{wanted.Namesrv}),
		producer.WithGroupName(wanted.Group),
		producer.WithRetry(2),
		producer.WithCredentials(credentials),
	)...)
	if err != nil {
		return err
	}
	if err = sender.Start(); err != nil {
		return err
	}
	defer sender.Shutdown()
	messages := make([]*primitive.Message, len(wanted.Messages))
	for i, one := range wanted.Messages {
		messages[i] = primitive.NewMessage(wanted.Topic, one.Body)
		messages[i].WithProperties(one.Properties)
		if one.Tags != "" {
			messages[i].WithTag(one.Tags)
		}
		if len(one.Keys) > 0 {
			messages[i].WithKeys(one.Keys)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	switch wanted.How {
	case "sync":
		for _, one := range messages {
			result, err := sender.SendSync(ctx, one)
			if err != nil {
				return err
			}
			tell(sent(result))
		}
	case "batch":
		result, err := sender.SendSync(ctx, messages...)
		if err != nil {
			return err
		}
		tell(sent(result))
	case "oneway":
		for _, one := range messages {
			if err := sender.SendOneWay(ctx, one); err != nil {
				return err
			}
		}
		// The client does not report when one-way messages are sent, and does not mark them as
		// one-way: brokers reply. It ends the connection without reading that. The system resets it
		// at the next reply, and what the broker has not read yet is lost: over TLS in 2 of 12 runs.
		time.Sleep(time.Second)
	case "async":
		var waiting sync.WaitGroup
		var failure error
		for _, one := range messages {
			waiting.Add(1)
			err := sender.SendAsync(ctx,
				func(_ context.Context, result *primitive.SendResult, err error) {
					defer waiting.Done()
					if err != nil {
						lock.Lock()
						failure = err
						lock.Unlock()
						return
					}
					tell(sent(result))
				}, one)
			if err != nil {
				return err
			}
		}
		waiting.Wait()
		return failure
	default:
		return fmt.Errorf("cannot send %q", wanted.How)
	}
	return nil
}

func sent(result *primitive.SendResult) map[string]any {
	return map[string]any{
		"status":        strconv.Itoa(int(result.Status)),
		"msg_id":        result.MsgID,
		"offset_msg_id": result.OffsetMsgID,
		"queue_id":      result.MessageQueue.QueueId,
		"queue_offset":  result.QueueOffset,
	}
}

func consume(wanted request) error {
	model := consumer.Clustering
	if wanted.Broadcasting {
		model = consumer.BroadCasting
	}
	receiver, err := rocketmq.NewPushConsumer(append(consumerTls(),
		consumer.WithNameServer(primitive.NamesrvAddr{wanted.Namesrv}),
		consumer.WithGroupName(wanted.Group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(wanted.Orderly),
		consumer.WithCredentials(credentials),
	)...)
	if err != nil {
		return err
	}
	got := make(chan struct{}, wanted.Count+1024)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: wanted.Expression}
	err = receiver.Subscribe(wanted.Topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, one := range messages {
				tell(map[string]any{
					"topic":         one.Topic,
					"body":          one.Body,
					"msg_id":        one.MsgId,
					"offset_msg_id": one.OffsetMsgId,
					"queue_id":      one.Queue.QueueId,
					"queue_offset":  one.QueueOffset,
					"tags":          one.GetTags(),
					"keys":          one.GetKeys(),
					"properties":    one.GetProperties(),
				})
				got <- struct{}{}
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	if err = receiver.Start(); err != nil {
		return err
	}
	deadline := time.After(60 * time.Second)
	for left := wanted.Count; left > 0; left-- {
		select {
		case <-got:
		case <-deadline:
			return fmt.Errorf("%d of %d messages missing after a minute", left, wanted.Count)
		}
	}
	return receiver.Shutdown()
}
