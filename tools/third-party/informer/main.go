// A shared informer of client-go, as every controller written in Go has one, which tells what it sees: a JSON object a
// line. It follows the ConfigMaps of one namespace until its standard input ends.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/features"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// An event is one line of output.
type event struct {
	Event           string `json:"event"`
	Name            string `json:"name,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Value           string `json:"value,omitempty"`
	// Objects in the store, with "synced".
	Count int    `json:"count,omitempty"`
	Error string `json:"error,omitempty"`
}

var output sync.Mutex

func tell(event event) {
	output.Lock()
	defer output.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(event); err != nil {
		// Nobody listens any more.
		os.Exit(1)
	}
}

func tellOf(what string, object any) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	configMap, ok := object.(*corev1.ConfigMap)
	if !ok {
		tell(event{Event: "error", Error: fmt.Sprintf("%s of a %T", what, object)})
		return
	}
	tell(event{Event: what, Name: configMap.Name, ResourceVersion: configMap.ResourceVersion, Value: configMap.Data["value"]})
}

func run() error {
	kubeconfig := flag.String("kubeconfig", "", "file that says where the server is and who asks")
	namespace := flag.String("namespace", "default", "whose ConfigMaps are followed")
	contentType := flag.String("content-type", runtime.ContentTypeJSON, "how objects travel")
	userAgent := flag.String("user-agent", "informer", "what the server shall call this program")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType, config.AcceptContentTypes, config.UserAgent = *contentType, *contentType, *userAgent
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if !features.FeatureGates().Enabled(features.WatchListClient) {
		return fmt.Errorf("the feature WatchListClient is off")
	}

	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	// No resync: each line is something that happened.
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		tell(event{Event: "broken", Error: err.Error()})
	}); err != nil {
		return err
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { tellOf("add", object) },
		UpdateFunc: func(before, after any) {
			old, isOld := before.(*corev1.ConfigMap)
			current, isCurrent := after.(*corev1.ConfigMap)
			// What a new list repeats did not happen again.
			if isOld && isCurrent && old.ResourceVersion == current.ResourceVersion {
				return
			}
			tellOf("update", after)
		},
		DeleteFunc: func(object any) { tellOf("delete", object) },
	}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		tell(event{Event: "synced", Count: len(informer.GetStore().ListKeys())})
	}
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

func main() {
	if err := run(); err != nil {
		tell(event{Event: "error", Error: err.Error()})
		os.Exit(1)
	}
}
